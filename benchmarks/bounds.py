"""How tight is the paper's bound, and how fast does the gradient fall? In a laboratory small enough to enumerate.

    python benchmarks/bounds.py [--quick]

- Theorem 3: the expected progress of a step under Theorem 4's rate over the progress that the bound promises, along
  ten steps of each run. It is at least 1 if the bound holds; the excess is the gap.
- Theorem 6: the power of T with which the mean of ``‖∇J‖²`` falls under ``η_t ∝ 1/√t``; the theorem says −1/2 or less.

``--quick`` takes one run and shorter ones.
"""

import argparse
import math
import sys

from report import ROOT, Figure, at_least, at_most, write

sys.path.insert(0, str(ROOT / "tests"))
from theory.bound import average_square_gradient, steps_and_bounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    figures: list[Figure] = []
    for seed in range(1 if quick else 3):
        ratios = [change / bound for change, bound in steps_and_bounds(seed)]
        figures.append(at_least(f"seed {seed}: least progress over the bound's", min(ratios), "×", 1))
        figures.append(Figure(f"seed {seed}: mean progress over the bound's", sum(ratios) / len(ratios), "×"))
    longest = 256 if quick else 4096
    slope = math.log(average_square_gradient(longest) / average_square_gradient(64)) / math.log(longest / 64)
    figures.append(at_most(f"power of T in the mean square gradient, T = 64 to {longest}", slope, "", -0.5))
    write("bounds-quick" if quick else "bounds", figures)


if __name__ == "__main__":
    main()
