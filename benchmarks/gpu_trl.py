"""TRL's GRPO step beside ours on this device, of the policy of ``step.py`` and by its runs."""

import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

from figures import Figure


def measure(quick: bool) -> Iterator[Figure | str]:
    for name in ("trl", "hydra"):
        import_module(name)
    from step import ours, trl, widen

    prompts, steps = (4, 3) if quick else (16, 8)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        policy = folder / "policy"
        widen(policy)
        mine = ours("vllm", policy, folder / "vllm", prompts, steps)
        yield Figure("step with vLLM", 1e3 * median(mine.seconds), "ms")
        theirs = trl(folder / "vllm", policy)
    yield Figure("TRL's step", 1e3 * median(theirs.seconds), "ms")
    yield Figure("TRL's step over ours with vLLM", median(theirs.seconds) / median(mine.seconds), "×")
    for name, one in (("ours", mine), ("TRL's", theirs)):
        yield Figure(f"{name}: response length", one.length, "tokens")
        yield Figure(f"{name}: live groups", 100 * one.live, "%")
