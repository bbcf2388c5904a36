# What the sbatch files share, sourced from the job's snapshot: `code` is where that is, the arguments are the overrides.
#   allocation         overrides that make the trainer's devices the job's tasks

# The snapshot's packages come before those that the environment has installed in place.
export PYTHONPATH=${code}/src:${code}${PYTHONPATH:+:${PYTHONPATH}}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=${OMP_NUM_THREADS} # srun takes it from the job up to SLURM 22.05 only
# Where rank 0 listens, which is no wider than needed; Lightning chooses the port by the job's number.
# This script runs on the job's first node, and a container may have no scontrol.
MASTER_ADDR=127.0.0.1
if [ "${SLURM_NNODES:-1}" -gt 1 ]; then
  MASTER_ADDR=$(scontrol show hostnames "${SLURM_JOB_NODELIST}" 2>/dev/null | head -n 1 || true)
  MASTER_ADDR=${MASTER_ADDR:-$(hostname)}
fi
export MASTER_ADDR

allocation=(
  paths.root="${PWD}"
  trainer.devices="${SLURM_NTASKS_PER_NODE}"
  trainer.num_nodes="${SLURM_NNODES}"
)

# sbatch's own output file is left where SLURM itself, or a mistake, had something to say.
id=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID}}${SLURM_ARRAY_TASK_ID:+_${SLURM_ARRAY_TASK_ID}}
trap 'find "slurm-${id}.out" -empty -delete 2>/dev/null || true' EXIT
