"""A real TensorBoard in a real browser: its first tab has the charts of the layout, each with its curves."""

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_tags import make_report

from callbacks.samples import sample_table
from callbacks.tags import FIRST
from callbacks.tensorboard import TensorBoard, kind_of

HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">\u202e"
STEPS = 5


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of TensorBoard on loopback, which shows the run in a folder."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port=0", "--host=127.0.0.1"]
    process = subprocess.Popen([*command, "--load_fast=false"], stderr=subprocess.PIPE, text=True)
    try:
        yield next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/", line)))
    finally:
        process.terminate()
        process.communicate()


def log(folder: Path) -> None:
    """Every number of the first tab, as a run logs them, and a response that does its worst."""
    writer, report = TensorBoard(str(folder)), make_report()
    object.__setattr__(report.batch.rollouts[0], "text", HOSTILE)
    writer.log_hyperparams({"eta0": 0.01, "baseline": "GradientWeightedBaseline"})
    tags = [tag.replace(".*", "one") for patterns in FIRST.values() for tag in patterns]
    for step in range(STEPS):
        writer.log_metrics({tag: 1.0 + place + step for place, tag in enumerate(tags)}, step)
    writer.experiment.add_text("rollout/samples", sample_table(report, 1).markdown(), 0)
    writer.finalize("success")


@pytest.mark.browser
def test_the_first_tab_has_what_matters(tmp_path):
    from playwright.sync_api import sync_playwright

    log(tmp_path)
    problems, requests = [], []
    with served(tmp_path) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 1000})
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(f"{address}#custom_scalars")
        cards = tab.locator("tf-custom-scalar-multi-line-chart-card, tf-custom-scalar-margin-chart-card")
        cards.nth(len(FIRST) - 1).wait_for(state="attached")
        assert cards.count() == len(FIRST)
        for place, (title, patterns) in enumerate(FIRST.items()):
            card = cards.nth(place)
            card.scroll_into_view_if_needed()
            card.get_by_text(title, exact=True).wait_for()
            curves = len(patterns) if kind_of(patterns) == "Multiline" else 1
            card.get_by_text(f"Matches ({curves})").wait_for()
        tab.goto(f"{address}#text")
        tab.get_by_text("document.title = 'taken'").first.wait_for()
        assert tab.title() == "TensorBoard"
        tab.goto(f"{address}#hparams")
        tab.get_by_text("GradientWeightedBaseline").first.wait_for()
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []


def test_a_writer_that_dies_has_said_why_before_the_run_ends(tmp_path, monkeypatch):
    """What its thread prints belongs into the log, which ends with the run; here it takes its time."""
    said = []

    def slowly(death: threading.ExceptHookArgs) -> None:
        time.sleep(0.5)
        said.append(death.exc_type)

    monkeypatch.setattr(threading, "excepthook", slowly)
    logger = TensorBoard(str(tmp_path))
    logger.log_metrics({"train/reward": 1.0}, 0)
    logger.experiment.flush()
    shutil.rmtree(tmp_path)
    logger.log_metrics({"train/reward": 1.0}, 1)
    with pytest.raises(FileNotFoundError):
        logger.finalize("failed")
    assert said == [FileNotFoundError]
