"""Write a page to read: of one run, of several, of a sweep, or of evaluations."""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from oblr.commands.parser import Parser
from oblr.errors import SettingError
from oblr.report.evaluations import evaluations, write_evaluation
from oblr.report.live import server
from oblr.report.page import whereabouts, write_report
from oblr.report.pictures import write_pictures
from oblr.report.runs import runs_and_others
from oblr.run.stopping import at_once
from oblr.run.terminal import say


def main() -> None:
    parser = Parser(
        __doc__,
        "python src/report.py runs/pocket                # all runs of that name",
        "python src/report.py runs/pocket --follow       # as they go on",
        "python src/report.py runs/a runs/b --into both --png",
    )
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, of sweeps, or of evaluations")
    parser.add_argument("--into", type=Path, help="where report.html is written; by default beside what it is of")
    parser.add_argument("--png", action="store_true", help="write its charts as pictures, too")
    parser.add_argument("--follow", action="store_true", help="show the page on this machine alone, as the runs go on")
    parser.add_argument("--port", type=int, default=6007, help="where --follow shows it")
    asked = parser.parse_args()
    missing = [folder for folder in asked.runs if not folder.is_dir()]
    if missing:
        raise SettingError("runs", f"{missing[0]} is no folder", "name folders of runs")
    found = {model: place for folder in asked.runs for model, place in evaluations(folder).items()}
    if found:
        return evaluated(found, asked)
    if asked.follow:
        return follow(asked.runs, asked.port)
    folder = asked.into or Path(os.path.commonpath([folder.resolve() for folder in asked.runs]))
    folder.mkdir(parents=True, exist_ok=True)
    runs, others = runs_and_others(asked.runs)
    for other in others:
        say(f"left out    {other}: it has logged nothing")
    say(f"report      {whereabouts(write_report(folder, runs))}")
    for path in write_pictures(folder, runs) if asked.png else ():
        say(f"picture     {path}")


def evaluated(models: dict[str, Path], asked: argparse.Namespace) -> None:
    """Of evaluations, which have neither curves nor anything to follow."""
    for option in ("follow", "png"):
        if getattr(asked, option):
            raise SettingError(f"--{option}", f"{asked.runs[0]} is an evaluation", "leave it out: it is for runs")
    if strange := [folder for folder in asked.runs if not evaluations(folder)]:
        raise SettingError("runs", f"{strange[0]} is no evaluation, others are", "give runs, or evaluations")
    folder = asked.into or Path(os.path.commonpath([folder.resolve() for folder in asked.runs]))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"report      {whereabouts(write_evaluation(folder, models))}")


def follow(runs: list[Path], port: int) -> None:
    """Until Ctrl-C."""
    try:
        serving = server(runs, port)
    except (OSError, OverflowError) as error:
        raise SettingError(
            "--port", f"{port} cannot be had ({error})", "give another one, as in --port=6008"
        ) from error
    at_once("", status=0)
    with serving, suppress(KeyboardInterrupt):
        say(f"report      {serving.address}   # Ctrl-C ends it")
        sys.stdout.flush()
        serving.serve_forever()
