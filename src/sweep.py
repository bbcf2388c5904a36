"""Run a sweep, one run after another or as the tasks of an array: ``python src/sweep.py experiment=sweep``."""

from oblr.commands.launch import one_line_errors
from oblr.commands.sweep import main

if __name__ == "__main__":
    with one_line_errors():
        main()
