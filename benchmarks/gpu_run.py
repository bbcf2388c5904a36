"""Runs by ``src/train.py``: does the demo learn on this device, and does a run of real size take what is planned of it?

The run of real size is the demo's policy in the shape of Qwen3-4B (``grown.py``): engine, update and optimizer meet
real sizes, no hub is needed, and held-out accuracy tells whether what they do is right.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

import torch
from figures import ROOT, Figure
from grown import grow
from hydra.types import RunMode
from transformers import AutoConfig, PretrainedConfig

#: What a run imports, besides torch and transformers.
NEEDED = ("hydra", "lightning", "torchmetrics", "datasets", "reasoning_gym", "pint", "tensorboard", "vllm")
PHASES = ("sync", "check", "rollout", "reward", "update", "step")
#: Phases of a run, and those of a plan that they are.
PLANNED = {"rollout": ("prefill", "decode"), "sync": ("sync",), "check": ("check",), "update": ("update", "optimizer")}


def shape(quick: bool) -> PretrainedConfig:
    """Qwen3-4B's; a small one with all that makes growing difficult where ``quick``."""
    config = AutoConfig.from_pretrained(ROOT / "conf" / "architecture" / "Qwen" / "Qwen3-4B-Base")
    if quick:
        config.update({"hidden_size": 256, "intermediate_size": 800, "num_hidden_layers": 6})
        config.update({"num_attention_heads": 8, "num_key_value_heads": 4})
        config.layer_types = config.layer_types[:6]
    return config


def of_real_size(quick: bool) -> list[str]:
    """What is typed for a run whose policy is in that shape; it is written once, in bfloat16 as published ones are."""
    policy = ROOT / ".cache" / "gpu" / f"grown-{'small' if quick else '4B'}"
    if not policy.exists():
        unfinished = policy.with_suffix(".part")
        grow(shape(quick), unfinished, torch.bfloat16)
        unfinished.rename(policy)
    experiment, steps = ("pocket", 2) if quick else ("oblr_qwen3_4b", 4)
    return [
        *(f"experiment={experiment}", f"policy.path={policy}", f"steps={steps}"),
        *("data=chain_sum", "reward=reasoning_gym", "rollout.max_new_tokens=48", "rollout.max_model_len=128"),
        *("planned.prompt=9", "planned.response=24", "eta0=1e-4"),
        *("callbacks.evaluation.every=1000", "callbacks.checkpoints.every=1000"),
    ]


def train(overrides: list[str], seconds: int) -> Iterator[str]:
    """A run; a note where it has done its work and does not end."""
    process = subprocess.Popen([sys.executable, ROOT / "src" / "train.py", *overrides], cwd=ROOT)
    try:
        if status := process.wait(seconds):
            raise subprocess.CalledProcessError(status, process.args)
    except subprocess.TimeoutExpired:
        process.kill()
        yield f"src/train.py did not end within {seconds} s"


def measure(quick: bool, which: str) -> Iterator[Figure | str]:
    for name in NEEDED:
        import_module(name)
    from oblr.commands.compose import composer
    from oblr.commands.plan import draft
    from oblr.plan.roofline import GPUS
    from oblr.record.curves import read_curves

    demo, label = which == "demo", "demo" if which == "demo" else f"run, {'small' if quick else which}"
    typed = ["experiment=pocket", "seed=1", f"steps={2 if quick else 24}"] if demo else of_real_size(quick)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        overrides = [*typed, f"paths.output_dir={folder}"]
        yield from train(overrides, 270 if demo else 240)
        curves = read_curves(folder)
        planned: dict[str, float] = {}
        if not demo:
            with composer() as composed:
                cfg = composed("train", overrides, RunMode.RUN)
                phases = draft(cfg, None if quick else GPUS["h100"]).plan().duration.phases
            label = f"{label}, N={cfg.rollout.prompts_per_step}, G={cfg.rollout.group_size}"
            planned = {phase: sum(phases[part] for part in parts) for phase, parts in PLANNED.items()}
    for kind in ("sampled", "greedy"):
        accuracy = curves[f"eval/{kind}_accuracy"][1]
        yield Figure(f"{label}: held-out {kind} accuracy before", 100 * accuracy[0], "%")
        yield Figure(f"{label}: held-out {kind} accuracy after", 100 * accuracy[-1], "%")
    yield Figure(f"{label}: largest log-prob gap", max(curves["rollout/logprob_gap_max"][1]), "nats")
    for phase in PHASES:  # the first step warms up
        taken = median(curves[f"time/{phase}"][1][1:])
        yield Figure(f"{label}: {phase}", 1e3 * taken, "ms")
        if phase in planned:
            yield Figure(f"{label}: {phase}, predicted / measured", planned[phase] / taken, "")
