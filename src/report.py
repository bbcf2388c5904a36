"""A page to read a run, several or a sweep on: ``python src/report.py runs/train/2026-01-31_12-00-00``."""

from oblr.commands.scripts import report

if __name__ == "__main__":
    report()
