"""Say what ails a run, what would pay in it, or that it is healthy: ``python src/doctor.py runs/pocket/2026-01-31``.

It needs torch alone, so that it reads what other trainers have logged where this program is not installed whole.
"""

import argparse
import sys
from pathlib import Path

from oblr.errors import SettingError
from oblr.run.installed import require

EXAMPLES = """
  python src/doctor.py runs/pocket/2026-01-31_12-00-00    # a run of this program
  oblr-doctor outputs/statistics.jsonl                    # what the library has logged in another trainer
"""


def main() -> None:
    """Prints at most five findings. Bad input is one line, and status 2."""
    require("torch")
    parser = argparse.ArgumentParser(
        description=f"{(__doc__ or '').splitlines()[0].partition(':')[0]}.\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run's folder, or a file or folder with statistics.jsonl")
    asked = parser.parse_args()
    try:
        for line in said(asked.run):
            print(line)
    except SettingError as error:
        from oblr.run.plain import plain

        print(f"error: {plain(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def said(run: Path) -> list[str]:
    """The lines that are printed, in which nothing steers a terminal.

    Raises:
        SettingError: there are no steps, or they cannot be read.
    """
    from oblr.doctor.diagnosis import diagnose, lines  # torch, which they import, takes seconds
    from oblr.doctor.reading import ours, read
    from oblr.run.plain import plain

    steps = read(run)
    return [plain(line) for line in lines(steps, diagnose(steps), ours(run))]
