"""``python src/report.py RUNS…``: a page of one run, of several, or of a sweep."""

import argparse
import os
from pathlib import Path

from oblr.errors import SettingError
from oblr.report.page import write_report
from oblr.report.runs import find_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or of sweeps")
    parser.add_argument("--into", type=Path, help="where report.html is written; by default beside what it is of")
    arguments = parser.parse_args()
    missing = [folder for folder in arguments.runs if not folder.is_dir()]
    if missing:
        raise SettingError("runs", f"{missing[0]} is no folder", "name folders of runs")
    folder = arguments.into or Path(os.path.commonpath([folder.resolve() for folder in arguments.runs]))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"report      {write_report(folder, find_runs(arguments.runs))}")
