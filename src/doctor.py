"""The command that tells what ails a run: ``python src/doctor.py runs/train/2026-01-31_12-00-00``."""

from oblr.doctor.command import main

if __name__ == "__main__":
    main()
