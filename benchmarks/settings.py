"""Bad settings tried, and those that end in one line: all scripts, every setting, by the command line's own way.

    python benchmarks/settings.py [--quick] [--tries N]

``tests/helpers/bad_settings.py`` has the values (no numbers, numbers out of range or far too large, null, other types,
quotes) and draws those that a setting cannot be, besides names that there are not. Each setting and each section of all
four scripts (``train.py``, ``eval.py``, ``pretrain.py``, ``sweep.py``) is tried once, and then more in a random order.
A try starts the script in this process, up to where it would import torch. It is right if it ends with status 2 and one
line, and nothing is written.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from figures import ROOT, Figure, at_most, write

sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from bad_settings import OPTIONS, is_right, outcome, tries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tries", type=int, default=4000)
    asked = parser.parse_args()
    first, others, seen = [], [], set()
    for case, override in tries(random.Random(0)):
        own = case.script, case.path
        (others if own in seen else first).append((case, override))
        seen.add(own)
    drawn = (first + others)[: 30 if asked.quick else max(asked.tries, len(first))]
    random.Random(1).shuffle(drawn)
    right, tried = Counter[str](), Counter(case.script for case, _ in drawn)
    for case, override in drawn:
        with tempfile.TemporaryDirectory() as folder:
            found = outcome(case, override, Path(folder))
        right[case.script] += is_right(found)
        if not is_right(found):
            print(case.script, *case.overrides, override, found, sep="\n  ")
    figures = [Figure("settings and sections tried", len({(case.script, case.path) for case, _ in drawn}), "")]
    for script in OPTIONS:
        figures.append(Figure(f"{script}: bad settings tried", tried[script], ""))
    figures.append(Figure("bad settings tried", len(drawn), ""))
    figures.append(Figure("of them in one line, with status 2 and nothing written", right.total(), ""))
    figures.append(at_most("others", len(drawn) - right.total(), "", 0))
    write("settings-quick" if asked.quick else "settings", figures)


if __name__ == "__main__":
    main()
