"""Run a sweep, one run after another or as the tasks of an array: ``python src/sweep.py experiment=sweep``."""

from oblr.commands.scripts import sweep

if __name__ == "__main__":
    sweep()
