"""Does ``make demo`` keep its promise? Three seeds, start to end.

    python benchmarks/demo.py [--quick]

``--quick`` takes ten steps of one seed. The run folder of seed 1 is where the README's picture comes from.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from figures import ROOT, Figure, asked_to_be_quick, at_least, at_most, write

from oblr.record.curves import read_curves


def run(seed: int, overrides: list[str]) -> tuple[Path, float]:
    """One demo; returns its run folder and its seconds from start to end."""
    folder = Path(tempfile.mkdtemp()) / "run"
    arguments = " ".join([f"seed={seed}", f"paths.output_dir={folder}", *overrides])
    start = time.perf_counter()
    subprocess.run(["make", "demo", f"ARGS={arguments}"], cwd=ROOT, check=True)
    return folder, time.perf_counter() - start


def figures(seed: int, folder: Path, seconds: float) -> list[Figure]:
    curves = read_curves(folder)
    sampled, greedy = (curves[f"eval/{kind}_accuracy"][1] for kind in ("sampled", "greedy"))
    return [
        Figure(f"seed {seed}: held-out sampled accuracy before", 100 * sampled[0], "%"),
        Figure(f"seed {seed}: held-out sampled accuracy after", 100 * sampled[-1], "%"),
        at_least(f"seed {seed}: rise", 100 * (sampled[-1] - sampled[0]), "points", 20),
        Figure(f"seed {seed}: held-out greedy accuracy after", 100 * greedy[-1], "%"),
        at_most(f"seed {seed}: largest log-prob gap", max(curves["rollout/logprob_gap_max"][1]), "nats", 1e-3),
        at_most(f"seed {seed}: training", sum(curves["time/step"][1]) / 60, "min", 5),
        at_most(f"seed {seed}: whole command after the install", seconds / 60, "min", 7),
    ]


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    measured, pictures = [], []
    for seed in (1,) if quick else (1, 2, 3):
        folder, seconds = run(seed, ["steps=10"] if quick else [])
        measured += figures(seed, folder, seconds)
        pictures.append(folder / "summary.png")
    write("demo", measured)
    if not quick:  # last: a result says whether the checkout was as committed
        shutil.copy(pictures[0], ROOT / "docs" / "demo.png")


if __name__ == "__main__":
    main()
