"""Attacks on the size of reports, and on what they load."""

import gzip
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from oblr.report import page
from oblr.report.page import write_report
from oblr.report.runs import find_runs, read_run

STEPS, TAGS = 2000, 60
HOSTILE = (
    "</script><script>document.title = 1</script><!--\u2028\u2029\\`${document.title = 2}*/');document.title = 3;//"
)


def make_run(folder: Path, steps: int, text: str, more: dict[str, float]) -> Path:
    """A run that has logged as many numbers a step as real ones do, and kept a response of its first step."""
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "run.json").write_text("{}")
    numbers = {f"time/{number}": number / 7 for number in range(TAGS)}
    lines = [{"step": step, "train/reward": 0.1, **numbers, **more} for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = {"group": 0, "response": 0, "problem": "one", "prompt": "what?", "answer": "1", "text": text, "tokens": 3}
    row |= {"live": True, "verdict": "scored", "reward": 1.0, "advantage": 1.0, "share": 1.0, "group_square": 1.0}
    (folder / "rollouts" / "step-000001-rank0.jsonl.gz").write_bytes(gzip.compress(f"{json.dumps(row)}\n".encode()))
    return folder


@pytest.fixture
def tab():
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def test_many_long_runs(tmp_path, tab, stopped):
    """A report of 20 runs of 2,000 steps each, of which all numbers were on one page."""
    for seed in range(20):
        make_run(tmp_path / f"run{seed:02d}", STEPS, "so it is 3", {})
    path = write_report(tmp_path, find_runs([tmp_path]))
    assert path.stat().st_size < 25e6
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    tab.wait_for_selector("#groups details")
    loaded = sum((path.parent / url.removeprefix(path.parent.as_uri() + "/")).stat().st_size for url in asked)
    assert loaded < 25e6
    stopped(f"curves are thinned, and steps come one by one: {loaded / 1e6:.1f} MB were loaded")


def test_a_hostile_piece(tmp_path, tab, stopped, monkeypatch):
    """A response and the name of a number that would end the script, the line or the string they stand in."""
    monkeypatch.setattr(page, "ROOM", 1000)
    names = {"train/__proto__": 5.0, f"train/{HOSTILE.replace('/', '')}": 1.0}
    folder = make_run(tmp_path / "run", 3, HOSTILE, names)
    tab.goto(write_report(folder, [read_run(folder)]).as_uri())
    tab.locator("#groups details summary").click()
    tab.wait_for_selector("td.text")
    assert tab.locator("td.text div").first.evaluate("one => one.textContent") == HOSTILE
    assert "proto 5" in tab.locator("#numbers").inner_text()
    assert tab.title() == "OBLR-PO report"
    (piece,) = (folder / "report_files").glob("steps-*")
    assert re.fullmatch(r'piece\("(?:[^"\\<]|\\.)*"\);\n', piece.read_bytes().decode("ascii"))
    stopped("a piece is one call with one string of ASCII, which is parsed as JSON")
