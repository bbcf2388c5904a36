# What the sbatch files share, sourced from the job's snapshot: `code` is where that is, `training` how many of the job's
# nodes train, all where it says nothing; the arguments are the overrides.
#   allocation         overrides that make the trainer's devices the job's tasks
#   nodes              names of the job's nodes, those that train first
#   address NODE       where other nodes reach that one
#   own                the override with which a job that is queued again goes on from its own checkpoint

training=${training:-${SLURM_NNODES:-1}}
# The snapshot's packages come before those that the environment has installed in place.
export PYTHONPATH=${code}/src:${code}${PYTHONPATH:+:${PYTHONPATH}}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=${OMP_NUM_THREADS} # srun takes it from the job up to SLURM 22.05 only

# A container may have no scontrol: then this node alone is known, on which this script runs, the job's first.
nodes=()
while read -r node; do nodes+=("${node}"); done < <(scontrol show hostnames "${SLURM_JOB_NODELIST}" 2>/dev/null || hostname)

address() { # its name, or what SLURM calls it by where nobody else knows that name
  local known
  known=$(getent hosts "$1" >/dev/null || scontrol --oneliner show node "$1" 2>/dev/null |
    sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p') || true
  echo "${known:-$1}"
}

# Where rank 0 listens, which is no wider than needed; Lightning chooses the port by the job's number.
MASTER_ADDR=127.0.0.1
[ "${training}" -eq 1 ] || MASTER_ADDR=$(address "${nodes[0]}")
export MASTER_ADDR

allocation=(
  paths.root="${PWD}"
  trainer.devices="${SLURM_NTASKS_PER_NODE}"
  trainer.num_nodes="${training}"
)

own() { # whichever checkpoint it was told to start from
  ! compgen -G "${run}/checkpoints/*.ckpt" >/dev/null || echo ckpt_path=auto
}

# sbatch's own output file is left where SLURM itself, or a mistake, had something to say.
id=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID}}${SLURM_ARRAY_TASK_ID:+_${SLURM_ARRAY_TASK_ID}}
trap 'find "slurm-${id}.out" -empty -delete 2>/dev/null || true' EXIT
