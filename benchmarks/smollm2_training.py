"""Real text and a real model on two CPU cores: SmolLM2-135M-Instruct takes whole steps under vLLM.

    make smollm2
    python benchmarks/smollm2_training.py [--benchmarks-dir DIR] [--quick]

``experiment=smollm2_cpu`` is sums in the policy's own chat template. With ``DIR`` also ``experiment=dialogsum_cpu``,
which trains on all but the first 100 dialogues of ``dialogsum_test.jsonl``, with those held out. All figures are read
from the runs' TensorBoard files. ``--quick`` takes one step each.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import ROOT, Figure, at_least, at_most, write

from oblr.record.curves import read_curves

HELD_OUT = 100
PATHS = {"path": "train", "held_out_path": "test"}


def run(name: str, overrides: list[str], steps: int | None) -> list[Figure]:
    """Train, and read what happened."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*overrides, f"paths.output_dir={folder}/run"] + ([f"steps={steps}"] if steps else [])
        subprocess.run([sys.executable, "src/train.py", *overrides], cwd=ROOT, check=True)
        curves = read_curves(Path(folder, "run"))
    reward, norms = curves["train/reward"][1], curves["gradnorm/mean"][1]
    sampled, low, high = (curves[f"eval/sampled_{end}"][1] for end in ("accuracy", "low", "high"))
    return [
        at_least(f"{name}: steps done", len(reward), "", steps or 4),
        at_most(f"{name}: largest log-prob gap", max(curves["rollout/logprob_gap_max"][1]), "nats", 1e-3),
        Figure(f"{name}: mean ‖∇log π‖ of a response, first step", norms[0], ""),
        Figure(f"{name}: mean ‖∇log π‖ of a response, last step", norms[-1], ""),
        Figure(f"{name}: ‖ĝ‖, largest", max(curves["snr/M1"][1]) ** 0.5, ""),
        Figure(f"{name}: training reward, first step", reward[0], ""),
        Figure(f"{name}: training reward, last step", reward[-1], ""),
        *(
            Figure(f"{name}: held-out reward {when} [{low[i]:.3f}, {high[i]:.3f}]", sampled[i], "")
            for when, i in (("before", 0), ("after", -1))
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmarks-dir", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    steps = 1 if args.quick else None
    figures = run("sums", ["experiment=smollm2_cpu"], steps)
    if args.benchmarks_dir is not None:
        with tempfile.TemporaryDirectory() as folder:
            lines = (args.benchmarks_dir / "dialogsum_test.jsonl").read_bytes().splitlines(keepends=True)
            Path(folder, "test.jsonl").write_bytes(b"".join(lines[:HELD_OUT]))
            Path(folder, "train.jsonl").write_bytes(b"".join(lines[HELD_OUT:]))
            files = [f"data.{key}={folder}/{name}.jsonl" for key, name in PATHS.items()]
            columns = ["data.columns.prompt=problem", "data.columns.answer=answer"]
            figures += run("dialogsum", ["experiment=dialogsum_cpu", *columns, *files], steps)
    write("smollm2_training-quick" if args.quick else "smollm2_training", figures)


if __name__ == "__main__":
    main()
