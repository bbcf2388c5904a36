"""The report of a run: what is in it, that no response can do anything, and, in a real browser, what is shown."""

import base64
import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from test_record import Policy, Run
from test_tags import make_report

from callbacks.record import RunRecord
from callbacks.rollouts import RolloutLog
from oblr.errors import SettingError
from oblr.report import page
from oblr.report.page import content, html, packed, write_report
from oblr.report.runs import differing, find_runs, read_run

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror='document.title = 1'>\u202e"
LONG = HOSTILE + "x" * 10**6


def make_run(folder: Path, seed: int = 1, steps: int = 4, text: str = "so it is 3") -> Path:
    """A run folder without a run: two groups of two responses a step, the first of which says ``text``."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"seed: {seed}\neta0: 0.01\npaths:\n  runs: {folder}\n")
    (folder / "train.log").write_text(
        "2026-01-31 12:00:00,000 WARNING callbacks.monitors: step 3: the entropy has collapsed\n"
        "2026-01-31 12:00:00,000 WARNING vllm: nobody needs to know\n"
    )
    record, log, trainer = RunRecord(str(folder)), RolloutLog(str(folder / "rollouts")), Run()
    trainer.current_epoch = 0
    log.on_train_start(trainer, None)
    for step in range(steps):
        record.log_metrics({"train/reward": 0.1 * step + seed, "train/lr": 0.01}, step)
        report = make_report()
        object.__setattr__(report.batch.rollouts[0], "text", text)
        trainer.current_epoch = step
        log.on_step(trainer, Policy(), report)
    return folder


def data_of(text: str) -> dict:
    """What the page's script reads."""
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found)


def test_a_page_of_one_run(tmp_path):
    folder = make_run(tmp_path / "run")
    path = write_report(folder, [read_run(folder)])
    shown = data_of(path.read_text())
    (run,) = shown["runs"]
    assert run["curves"]["train/reward"] == [[0, 1, 2, 3], pytest.approx([1.0, 1.1, 1.2, 1.3])]
    assert run["warnings"] == [[3, "step 3: the entropy has collapsed"]]
    assert run["settings"] == {"seed": 1, "eta0": 0.01}
    assert shown["meanings"]["train/lr"].startswith("η_t")
    (of_rank,) = run["rollouts"]["2"]
    responses = [json.loads(line) for line in gzip.decompress(base64.b64decode(of_rank)).splitlines()]
    assert responses[0]["text"] == "so it is 3"
    assert len(responses) == 4
    with (folder / "report.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["value"]) for line in lines if line["tag"] == "train/reward"] == run["curves"]["train/reward"][1]


def test_a_page_needs_nothing_and_runs_nothing_of_a_response(tmp_path):
    text = html([read_run(make_run(tmp_path / "run", text=LONG))])
    assert "document.title = 'taken'" not in text
    assert len(text) < 10**6
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert not re.search(r"<!-- [\w.]+ -->", text)
    assert "@import" not in text
    assert data_of(text)["runs"][0]["name"] == "run"


def test_of_long_runs_steps_are_left_out_evenly(tmp_path):
    run = read_run(make_run(tmp_path / "run", steps=9))
    everything = sum(len(of_rank) for files in packed(run, 10**9).values() for of_rank in files)
    assert list(packed(run, everything)) == list(range(9))
    assert list(packed(run, int(0.99 * everything))) == [0, 2, 4, 6, 8]
    assert list(packed(run, everything // 2)) == [0, 4, 8]


def test_several_runs_and_what_differs(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / f"seed{seed}", seed)
    runs = find_runs([tmp_path])
    assert [run.name for run in runs] == ["seed1", "seed2"]
    assert differing(runs) == ["seed"]
    assert [run["configuration"] for run in content(runs)["runs"]] == [[], []]


def test_what_is_no_run(tmp_path):
    with pytest.raises(SettingError, match="holds no run"):
        find_runs([tmp_path])
    done = subprocess.run(
        [sys.executable, "src/report.py", str(tmp_path / "nosuch")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: runs: {tmp_path}/nosuch is no folder")


@pytest.mark.browser
def test_in_a_browser(tmp_path):
    """Without any request or error: charts, a step, its groups and their responses, by mouse and by keyboard."""
    from playwright.sync_api import sync_playwright

    path = write_report(tmp_path, [read_run(make_run(tmp_path / "run", text=LONG))])
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page()
        problems, requests = [], []
        tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(path.as_uri())
        assert tab.title() == "OBLR-PO report"
        assert tab.locator("figure canvas").count() == 2
        tab.wait_for_selector("details")
        assert tab.locator("#step").inner_text() == "1"
        tab.locator("details summary").first.focus()
        tab.keyboard.press("Enter")
        assert tab.locator("details").first.locator("tr").count() == 3
        shown = tab.locator("td.text div").first.inner_text()
        assert shown.startswith("</script><script>document.title")
        chart = tab.locator("figure").first.locator(".u-over")
        chart.click(position={"x": chart.bounding_box()["width"] - 3, "y": 50})
        tab.wait_for_function("document.getElementById('step').textContent === '4'")
        tab.locator("#before").focus()
        tab.keyboard.press("Enter")
        tab.wait_for_function("document.getElementById('step').textContent === '3'")
        assert "train/reward 1.2" in tab.locator("#numbers").inner_text()
        assert tab.locator("#warnings li").all_inner_texts() == ["step 3: the entropy has collapsed"]
        assert tab.title() == "OBLR-PO report"
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_assets_are_what_the_page_names():
    names = re.findall(r"<!-- ([\w.]+) -->", (page.ASSETS / "page.html").read_text())
    assert sorted(names) == ["data", "page.css", "page.js", "uPlot.css", "uPlot.js"]
