"""Does a step take as long as the plan says? Predicted and measured seconds of the pocket experiment, on this machine.

    python benchmarks/step_time.py [--quick]

Each round asks for a plan, which measures the machine for itself, and then trains: the median step of that run. Steps
that evaluate are not among them: the plan leaves evaluation out.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from figures import ROOT, at_most, median_ratio, write
from training import composed

from oblr.commands.plan import make
from oblr.record.curves import read_curves

#: of |predicted / measured − 1|
ERROR = 0.3


def predicted() -> float:
    return make(composed(["experiment=pocket"])).duration.step


def measured(seed: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        settings = [f"steps={steps}", f"seed={seed}", f"paths.output_dir={folder}", "~callbacks.evaluation"]
        command = [sys.executable, "src/train.py", "experiment=pocket", *settings]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return median(read_curves(folder)["time/step"][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    ratios = [predicted() / measured(seed, 2 if quick else 20) for seed in range(1 if quick else 9)]
    errors = [abs(ratio - 1) for ratio in ratios]
    figures = [
        median_ratio("pocket: predicted / measured time of a step", ratios, ""),
        at_most("pocket: |predicted / measured − 1|, median", median(errors), "", ERROR),
        at_most("pocket: |predicted / measured − 1|, largest", max(errors), "", ERROR),
    ]
    write("step_time-quick" if quick else "step_time", figures)


if __name__ == "__main__":
    main()
