"""A real TensorBoard with its default server, in a real browser: what it shows first, and what that means."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from step_statistics import Policy, make_statistics

from callbacks.rollouts import shares
from callbacks.samples import sample_table
from callbacks.tensorboard import GLANCE, HEADLINES, TensorBoard, glance, layout
from oblr.record.tags import BANDS, FIRST, GOVERNED, RATE, meaning

HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">\u202e"
STEPS = 5
TAGS = [tag.replace(".*", name) for patterns in FIRST.values() for tag in patterns for name in ("one", "two")]
TAGS = list(dict.fromkeys(TAGS))
GOVERNING = "η₀ = 0.01 × what it was told"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of TensorBoard on loopback, which shows the run in a folder."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port=0", "--host=127.0.0.1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/", line)))
        listing = f"{address}data/plugins_listing"
        while not json.load(urllib.request.urlopen(listing))["custom_scalars"]["enabled"]:
            time.sleep(0.1)  # it reads files at its own pace
        yield address
    finally:
        process.terminate()
        process.communicate()


def log(folder: Path) -> None:
    """Every number of the first tab, as a run logs them, and a response that does its worst."""
    writer, stats = TensorBoard(str(folder)), make_statistics()
    object.__setattr__(stats.batch.rollouts[0], "text", HOSTILE)
    writer.log_hyperparams({"eta0": 0.01, "baseline": "gradient_weighted", GOVERNED: GOVERNING})
    for step in range(1, STEPS + 1):
        writer.log_metrics({tag: 1.0 + place + step for place, tag in enumerate(TAGS)}, step)
    writer.experiment.add_text("rollout/samples", sample_table(stats, shares(Policy(), stats), 1).markdown(), 1)
    writer.finalize("success")


@pytest.mark.browser
def test_the_first_tab_has_what_matters(tmp_path):
    from playwright.sync_api import sync_playwright

    log(tmp_path)
    problems, requests, shown = [], [], [tag for tag in HEADLINES if tag in TAGS]
    with served(tmp_path) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 1000})
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(f"{address}#custom_scalars")
        cards = tab.locator("tf-custom-scalar-multi-line-chart-card, tf-custom-scalar-margin-chart-card")
        categories = [*layout(TAGS, GOVERNING).items()]
        cards.nth(sum(len(charts) for _, charts in categories) - 1).wait_for(state="attached")
        first = categories[0][1] | categories[1][1]
        cards.first.get_by_text(next(iter(first)), exact=True).wait_for()
        for title in first:
            card = cards.filter(has=tab.get_by_text(title, exact=True))
            card.scroll_into_view_if_needed()
            card.get_by_text("Matches (1)").wait_for()
        tab.goto(f"{address}#timeseries")
        tab.get_by_text(GLANCE, exact=True).first.wait_for()
        titles = tab.locator("card-group-toolbar, .group-title").all_inner_texts()
        assert next(title.split("\n")[0] for title in titles if title != "Pinned") == GLANCE
        tab.goto(f"{address}#scalars")
        tab.get_by_title("Show summary description").first.click()
        tab.get_by_text(meaning(shown[0])[:30]).first.wait_for()
        tab.goto(f"{address}#text")
        tab.get_by_text("document.title = 'taken'").first.wait_for()
        assert tab.title() == "TensorBoard"
        tab.goto(f"{address}#hparams")
        tab.get_by_text("gradient_weighted").first.wait_for()
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []


def test_its_default_server_says_what_a_number_means(tmp_path):
    """It serves the description of every tag; of the learning rate also what governs it."""
    log(tmp_path)
    again = [tag for tag in HEADLINES if tag in TAGS]
    with served(tmp_path) as address:
        for _ in range(100):  # the data server reads files at its own pace
            with urllib.request.urlopen(f"{address}data/plugin/scalars/tags") as answer:
                found = next(iter(json.load(answer).values()), {})
            if len(found) >= len(TAGS) + len(again):
                break
            time.sleep(0.1)
    assert found.keys() == {*TAGS, *map(glance, again)}
    for tag in TAGS:
        assert re.sub(r"<[^>]*>", "", found[tag]["description"]).split()[:3] == meaning(tag).split()[:3], tag
    for tag in again:
        assert found[glance(tag)]["description"] == found[tag]["description"]
    assert GOVERNING in found["train/lr"]["description"]


def test_what_shares_a_chart_can_be_told_apart():
    """A chart of the tab Custom Scalars has one colour a run: it has one line, or one line with its band."""
    categories = layout(TAGS, GOVERNING)
    charts = [chart for charts in categories.values() for chart in charts.values()]
    assert sorted(tag for _, tags in charts for tag in tags) == sorted(TAGS)
    for kind, tags in charts:
        assert len(tags) == 1 if kind == "Multiline" else tags[1:] == BANDS[tags[0]]
    first, second, *_ = categories.values()
    assert [title.partition(":")[0] for title in [*first, *second]][:5] == list(FIRST)[:5]
    assert f"{RATE}: {GOVERNING}" in second


def test_the_layout_is_written_once_when_the_tags_are_known(tmp_path):
    """An evaluation comes before the first step."""
    written, logger = [], TensorBoard(str(tmp_path))
    logger.experiment.add_custom_scalars = written.append
    logger.log_metrics({"eval/best": 1.0}, 0)
    for step in (1, 2):
        logger.log_metrics(dict.fromkeys(TAGS, 1.0), step)
    assert written == [layout(TAGS)]
    logger.finalize("failed")


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
