"""How long reports take to open, in a real browser, how large they are, and how long it takes to write them.

    make chromium
    python benchmarks/page.py [--quick]

Of one run of 2,000 steps, and of 50 of these. They have the records of a short real run of ``experiment=pocket`` again
and again, each number of a curve a little moved. A page is open once its curves are drawn and the first step's groups
can be read. Afterwards a step in the middle is opened, and the mouse goes over the curves. ``--quick``: 5 runs of 200.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from figures import ROOT, Figure, asked_to_be_quick, at_most, median_ratio, write
from playwright.sync_api import Browser, Page, sync_playwright

from oblr.record.curves import METRICS
from oblr.report.page import html, write_report
from oblr.report.pieces import FILES, Beside
from oblr.report.runs import find_runs, read_run

OPENED = 9
#: Steps of long runs, how many there are of them, and in how many configurations.
LONG, RUNS, CONFIGURATIONS = 2000, 50, 5
#: Seconds between moves of the mouse beyond which a page would feel stuck.
STUCK = 0.1
#: Keeps the longest time between two frames.
FRAMES = """() => {
    window.longest = 0;
    let last = performance.now();
    const look = (now) => {
        window.longest = Math.max(window.longest, now - last);
        last = now;
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
}"""


def real_run(folder: Path) -> None:
    """A few steps of the demo, whose records long runs are made of."""
    command = [sys.executable, "src/train.py", "experiment=pocket", "rollout.engine=hf", "steps=4"]
    small = ["data.held_out.size=8", f"paths.output_dir={folder}"]
    subprocess.run([*command, *small], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def make_long(folder: Path, real: Path, steps: int, seed: int, configuration: int) -> None:
    """A run folder as ``real`` has it, of many more steps; its responses are the real run's, in turn."""
    (folder / "rollouts").mkdir(parents=True)
    config = (real / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config)
    told = {"seed": seed, "schedule.eta0": 0.01 * configuration}
    record = json.loads((real / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"told": told}))
    draw = random.Random(f"{seed} {configuration}")
    lines = [json.loads(line) for line in (real / METRICS).read_text().splitlines()]
    of_steps = [line for line in lines if "train/lr" in line]
    evaluations = [line for line in lines if "train/lr" not in line]
    with (folder / METRICS).open("w") as file:
        for number in range(1, steps + 1):
            for line in [of_steps[number % len(of_steps)], *evaluations[: number % 10 == 0]]:
                moved = {tag: value * draw.gauss(1, 0.1) for tag, value in line.items() if value is not None}
                file.write(json.dumps(moved | {"step": number}) + "\n")
    responses = sorted((real / "rollouts").iterdir())
    for number in range(1, steps + 1):
        there = responses[number % len(responses)]
        os.link(there, folder / "rollouts" / f"step-{number:06d}-rank0.jsonl.gz")
    (folder / "finished.json").write_text("{}")


def opened(browser: Browser, page: Path) -> tuple[float, Page, list[str]]:
    """How long it takes until curves are drawn and the first step is there; the tab, and what it asks for."""
    # A wait is polled by Playwright's own `eval`, which the page's policy forbids.
    tab, asked = browser.new_page(bypass_csp=True), list[str]()
    tab.set_default_timeout(1_500_000)
    tab.on("request", lambda request: asked.append(request.url))
    begun = time.perf_counter()
    tab.goto(page.as_uri())
    tab.wait_for_selector("#groups details")
    tab.evaluate("() => new Promise(requestAnimationFrame)")
    assert tab.evaluate("document.querySelectorAll('figure canvas').length") > 1
    return time.perf_counter() - begun, tab, asked


def seconds(browser: Browser, page: Path) -> Iterator[float]:
    """How long it takes to open, again and again."""
    for _ in range(OPENED):
        took, tab, _ = opened(browser, page)
        yield took
        tab.close()


def until(tab: Page, act: Callable[[], Any], condition: str) -> float:
    begun = time.perf_counter()
    act()
    tab.wait_for_function(condition)
    return time.perf_counter() - begun


def moved(tab: Page) -> float:
    """The longest time between two frames while the mouse goes over the first chart."""
    chart = tab.locator("figure .u-over").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    tab.evaluate(FRAMES)
    for x in range(0, int(box["width"]), 4):
        tab.mouse.move(box["x"] + x, box["y"] + 50)
    return tab.evaluate("window.longest") / 1000


def loaded(asked: list[str]) -> float:
    """Megabytes of the files that a tab has asked for so far."""
    files = {unquote(urlsplit(url).path) for url in asked if url.startswith("file:")}
    return sum(Path(file).stat().st_size for file in files) / 1e6


def long_runs(browser: Browser, place: Path, real: Path, steps: int, runs: int) -> Iterator[Figure]:
    """One long run and many."""
    many = place / "many"
    for number in range(runs):
        make_long(many / f"run{number:02d}", real, steps, number // CONFIGURATIONS, number % CONFIGURATIONS)
    one = many / "run00"
    for name, folder, most in ((f"{steps} steps", one, 2.0), (f"{runs} runs of {steps} steps", many, 5.0)):
        for run in sorted(many.iterdir()) if folder == many else ():  # each has ended with a report of its own
            html([read_run(run)], Beside(run))
        begun = time.perf_counter()
        page = write_report(folder, [read_run(folder)] if folder == one else find_runs([folder]))
        yield Figure(f"{name}: writing the report", time.perf_counter() - begun, "s")
        begun = time.perf_counter()
        write_report(folder, [read_run(folder)] if folder == one else find_runs([folder]))
        yield Figure(f"{name}: writing it again", time.perf_counter() - begun, "s")
        yield median_ratio(f"{name}: until the page is open", list(seconds(browser, page)), "s", most=most)
        _, tab, asked = opened(browser, page)
        yield at_most(f"{name}: loaded until it is open", loaded(asked), "MB", 25)
        beside = page.parent / FILES
        pieces = list(beside.iterdir()) if beside.is_dir() else []
        yield Figure(f"{name}: files beside the page", float(len(pieces)), "")
        yield Figure(f"{name}: steps to read", float(tab.evaluate("sum(data.runs.map((run) => kept(run).length))")), "")
        there = f"by('numbers').textContent !== {json.dumps(tab.locator('#numbers').inner_text())}"
        yield at_most(
            f"{name}: until step {steps // 2} can be read",
            until(tab, lambda: tab.evaluate(f"location.hash = '#step={steps // 2}'"), there),  # noqa: B023
            "s",
            1,
        )
        yield at_most(f"{name}: longest frame under the mouse", moved(tab), "s", STUCK)
        if tab.locator("figure [role=status] button").count():
            press = tab.locator("figure [role=status] button").first
            words = "document.querySelector('figure [role=status]').textContent.startsWith('Every point')"
            yield Figure(f"{name}: until a chart has all points", until(tab, press.click, words), "s")
            yield at_most(f"{name}: longest frame over all points", moved(tab), "s", STUCK)
        tab.close()


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        real = Path(place, "real")
        real_run(real)
        figures = list(long_runs(browser, Path(place), real, *((200, 5) if quick else (LONG, RUNS))))
        browser.close()
    write("page-quick" if quick else "page", figures, load=os.getloadavg())


if __name__ == "__main__":
    main()
