"""Does a step take as long as the plan says? Predicted and measured seconds of the pocket experiment, on this machine.

    python benchmarks/step_time.py [--quick]

Each round asks for a plan, which measures the machine for itself, and then trains: the median step of that run. Steps
that evaluate are not among them: the plan leaves evaluation out.
"""

import tempfile
from pathlib import Path
from statistics import median

from figures import asked_to_be_quick, at_most, median_ratio, write
from training import composed, typed

from oblr.commands.plan import make

#: of |predicted / measured − 1|
ERROR = 0.3


def predicted() -> float:
    return make(composed(["experiment=pocket"])).duration.step


def measured(seed: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        curves = typed(Path(name) / "run", f"steps={steps}", f"seed={seed}", "~callbacks.evaluation")
        return median(curves["time/step"])


def main() -> None:
    quick = asked_to_be_quick(__doc__)
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
