"""Does the demo learn on this device, and where do its seconds go?"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

from figures import ROOT, Figure

#: What ``src/train.py experiment=pocket`` imports, besides torch, transformers and vLLM.
NEEDED = ("hydra", "lightning", "torchmetrics", "datasets", "reasoning_gym", "pint", "tensorboard", "vllm")
PHASES = ("sync", "check", "rollout", "reward", "update", "step")


def train(overrides: list[str], seconds: int) -> Iterator[str]:
    """A run by ``src/train.py``; a note where it has done its work and does not end."""
    process = subprocess.Popen([sys.executable, ROOT / "src" / "train.py", *overrides], cwd=ROOT)
    try:
        if status := process.wait(seconds):
            raise subprocess.CalledProcessError(status, process.args)
    except subprocess.TimeoutExpired:
        process.kill()
        yield f"src/train.py did not end within {seconds} s"


def measure(quick: bool) -> Iterator[Figure | str]:
    for name in NEEDED:
        import_module(name)
    from oblr.record.curves import read_curves

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        overrides = ["experiment=pocket", "seed=1", f"steps={2 if quick else 24}", f"paths.output_dir={folder}"]
        yield from train(overrides, 270)
        curves = read_curves(folder)
    for kind in ("sampled", "greedy"):
        accuracy = curves[f"eval/{kind}_accuracy"][1]
        yield Figure(f"demo: held-out {kind} accuracy before", 100 * accuracy[0], "%")
        yield Figure(f"demo: held-out {kind} accuracy after", 100 * accuracy[-1], "%")
    yield Figure("demo: largest log-prob gap", max(curves["rollout/logprob_gap_max"][1]), "nats")
    for phase in PHASES:
        yield Figure(f"demo: {phase}", 1e3 * median(curves[f"time/{phase}"][1]), "ms")
