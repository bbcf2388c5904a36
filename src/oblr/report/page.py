"""One page that needs nothing else: curves, the steps behind them, and the responses behind those."""

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from callbacks.tags import BANDS, first, meaning, name
from oblr.report.comparison import comparison, configuration
from oblr.report.runs import Run, differing
from oblr.run.provenance import write_private, write_whole

ASSETS = Path(__file__).parent / "assets"
#: Bytes of compressed responses that a page may have; beyond, every second step is left out, and so on.
ROOM = 14 * 2**20


def write_report(folder: Path, runs: Sequence[Run]) -> Path:
    """Write ``report.html`` and ``report.csv`` into ``folder``; the former needs no other file and asks for none."""
    page = folder / "report.html"
    write_private(page, html(runs))
    write_whole(folder / "report.csv", table(runs))
    return page


def html(runs: Sequence[Run]) -> str:
    """The page's text."""
    return filled(content(runs))


def filled(shown: dict[str, Any]) -> str:
    """The page that shows this."""
    text = (ASSETS / "page.html").read_text()
    for part in ("uPlot.css", "page.css", "uPlot.js", "curves.js", "step.js", "page.js"):
        text = text.replace(f"<!-- {part} -->", (ASSETS / part).read_text())
    allowed = " ".join(map(fingerprint, re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)))
    text = text.replace("<!-- scripts -->", allowed)
    data = json.dumps(shown, ensure_ascii=True, separators=(",", ":"), default=str)
    # Nothing in a response ends the element that it stands in, or is taken for anything but text.
    return text.replace("<!-- data -->", data.replace("<", "\\u003c"))


def fingerprint(script: str) -> str:
    """Of a script of ours, by which a browser tells it from any other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def content(runs: Sequence[Run]) -> dict[str, Any]:
    """What the page shows."""
    differs = differing(runs)
    return {
        "runs": [
            {
                "name": run.name,
                "command": run.command,
                "model": run.model,
                "method": run.method,
                "finished": run.finished,
                "settings": run.settings,
                "configuration": configuration(run, differs),
                "curves": run.curves,
                "warnings": run.warnings,
                "resumed": run.resumed,
                "rollouts": packed(run, ROOM // len(runs)),
            }
            for run in runs
        ],
        "differs": differs,
        "comparison": comparison(runs, differs),
        "charts": first({tag for run in runs for tag in run.curves}),
        "bands": BANDS,
        "meanings": {tag: meaning(tag) for run in runs for tag in run.curves},
        "names": {tag: name(tag) for run in runs for tag in run.curves},
    }


def packed(run: Run, room: int) -> dict[int, list[str]]:
    """Step → the ranks' files in base64; of a long run as many steps, evenly spread, as ``room`` bytes hold, if any."""
    found = run.rollouts
    while 4 / 3 * sum(path.stat().st_size for files in found.values() for path in files) > room:
        kept = range(0, len(found), 2) if len(found) > 1 else ()
        found = {step: files for place, (step, files) in enumerate(found.items()) if place in kept}
    return {step: [base64.b64encode(path.read_bytes()).decode() for path in files] for step, files in found.items()}


def table(runs: Sequence[Run]) -> str:
    """All curves as CSV: run, step, tag, value."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "step", "tag", "value"])
    for run in runs:
        for tag, (steps, values) in run.curves.items():
            writer.writerows([run.name, step, tag, value] for step, value in zip(steps, values, strict=True))
    return file.getvalue()
