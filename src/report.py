"""A page to read a run, several or a sweep on: ``python src/report.py runs/train/2026-01-31_12-00-00``."""

from oblr.commands.launch import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        from oblr.commands.report import main

        main()
