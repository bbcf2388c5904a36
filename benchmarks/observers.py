"""What watching costs: the share of a step that all observers and loggers take, rollouts kept.

    make smollm2
    python benchmarks/observers.py [--quick] [--only pocket]

Each hook of a callback and each call of a logger is timed inside real runs, ``experiment=pocket`` and
``experiment=smollm2_cpu``. A step is what lies between the starts of two. Left out are callbacks that evaluate or save,
which work and do not watch. Norms of groups with advantages are the step's own here; those of others are measured for
the curves, every so many steps, so that the median step has none of them and all steps together do.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import ROOT, Figure, median_ratio, parser, write

#: Experiment → most that observers may take of a step, and how many steps are taken.
EXPERIMENTS = {"pocket": (0.02, 40), "smollm2_cpu": (0.005, 10)}


def measured(experiment: str, steps: int) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal")
        command = [
            *(sys.executable, "src/train.py", f"experiment={experiment}", f"steps={steps}"),
            *(f"paths.output_dir={folder}/run", "~callbacks.evaluation"),
            f"+callbacks.cost={{_target_: hooks.Cost, journal: {journal}}}",
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "benchmarks", ROOT / "src", ROOT)))}
        subprocess.run(command, cwd=ROOT, check=True, env=environment)
        return json.loads(journal.read_text())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", choices=EXPERIMENTS, help="the other's figures stay as they were measured")
    arguments = options.parse_args()
    quick, only = arguments.quick, arguments.only or ("pocket" if arguments.quick else None)
    figures: list[Figure] = []
    for experiment in EXPERIMENTS if only is None else (only,):
        bound, steps = EXPERIMENTS[experiment]
        found = measured(experiment, 4 if quick else steps)
        shares = [sum(step.values()) / step["step"] - 1 for step in found]
        figures.append(median_ratio(f"{experiment}: all observers and loggers, of a step", shares, "", most=bound))
        whole = sum(step["step"] for step in found)
        all_of_them = sum(sum(step.values()) for step in found) - whole
        figures.append(Figure(f"{experiment}: all observers and loggers, of all steps", all_of_them / whole, ""))
        names = dict.fromkeys(name for step in found for name in step if name != "step")
        parts = {name: sum(step.get(name, 0.0) for step in found) / whole for name in names}
        for name, share in sorted(parts.items(), key=lambda part: -part[1]):
            figures.append(Figure(f"{experiment}: {name}, of all steps", share, ""))
    write("observers-quick" if quick else "observers", figures, keep=only is not None and not quick)


if __name__ == "__main__":
    main()
