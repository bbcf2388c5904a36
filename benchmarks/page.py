"""How long reports take to open, in a real browser, how large they are, and how long it takes to write them.

    make chromium
    python benchmarks/page.py [--quick] [--before=A_CHECKOUT]

Of one run of 300 steps with 128 responses each, once short ones and once of 400 words drawn at random, which compress
badly; of one of 2,000 steps, and of 50 of these. Those have the records of a short real run of ``experiment=pocket``
again and again, each number of a curve a little moved. A page is open once its curves are drawn and the first step's
groups can be read. Afterwards a step in the middle is opened, and the mouse goes over the curves.

With ``--before`` the long ones are also written and opened as an earlier revision, in a checkout of its own, does it.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import torch
from figures import ROOT, Figure, at_most, median_ratio, write
from playwright.sync_api import Browser, Page, sync_playwright

from callbacks.rollouts import RolloutLog
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.types import LogprobGap, Moments, Rollout, RolloutBatch, StepStatistics
from oblr.gradnorm.measure import GradNorms
from oblr.problem import Completion, Problem
from oblr.record.curves import METRICS
from oblr.record.logger import RunRecord
from oblr.record.tags import FIRST
from oblr.report.live import Live
from oblr.report.page import html, write_report
from oblr.report.pieces import FILES, Beside
from oblr.report.runs import find_runs, read_run

PROMPTS, SIZE = 16, 8
#: Words of a response.
KINDS = {"short": 20, "long": 400}
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
#: As long and as often as words are.
VOCABULARY = ["".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", k=3 + i % 8)) for i in range(5000)]


def step(words: int, draw: random.Random) -> StepStatistics:
    """What a step of 128 responses finds, with numbers that have all their digits."""
    rollouts = [
        Rollout(
            Problem(f"problem/{i // SIZE}", f"What is {draw.randrange(10**6)} + {draw.randrange(10**6)}?", "7"),
            [1] * 20,
            Completion([1] * words, [-1.0] * words, True),
            " ".join(draw.choice(VOCABULARY) for _ in range(words)),
            float(draw.random() < 0.5),
        )
        for i in range(PROMPTS * SIZE)
    ]
    batch = RolloutBatch(rollouts, SIZE, 0)
    numbers = torch.tensor([draw.random() for _ in rollouts], dtype=torch.float64).view(PROMPTS, SIZE)
    return StepStatistics(
        batch=batch,
        first=0,
        problems=batch.problems,
        scores=batch.rewards,
        rewards=batch.rewards,
        greedy_rewards=None,
        lengths=batch.lengths,
        finished=batch.finished,
        live=torch.ones(PROMPTS, dtype=torch.bool),
        square_norms=numbers,
        reward_weights=numbers,
        advantages=batch.rewards - batch.rewards.mean(1, keepdim=True),
        coefficients=numbers,
        group_squares=numbers.sum(1),
        log_ratios=numbers,
        entropies=batch.lengths.double(),
        logprob_gap=LogprobGap(0.0, 0.0, 0.0),
        moments=Moments(PROMPTS, 1.0, 2.0),
    )


def make_run(folder: Path, steps: int, words: int) -> None:
    """A run folder with what a run leaves there."""
    draw, trainer = random.Random(0), SimpleNamespace(current_epoch=0, global_rank=0, world_size=1)
    policy: Any = SimpleNamespace(
        baseline=GradientWeightedBaseline(),
        gradnorm=GradNorms("exact"),
        per_token=False,
        loss=SimpleNamespace(per_token=False),
    )
    folder.mkdir()
    (folder / "config.yaml").write_text(f"seed: 1\nsteps: {steps}\n")
    (folder / "run.json").write_text("{}")
    record, log = RunRecord(str(folder)), RolloutLog(str(folder / "rollouts"), limit_mib=1e6)
    log.on_train_start(cast(Any, trainer), policy)
    tags = [tag.replace(".*", f"one{i}") for patterns in FIRST.values() for tag in patterns for i in range(3)]
    for trainer.current_epoch in range(steps):
        record.log_metrics({tag: draw.random() for tag in dict.fromkeys(tags)}, trainer.current_epoch + 1)
        log.on_step(cast(Any, trainer), policy, step(words, draw))
    (folder / "finished.json").write_text("{}")


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
    tab, asked = browser.new_page(), list[str]()
    tab.set_default_timeout(1_500_000)
    tab.on("request", lambda request: asked.append(request.url))
    begun = time.perf_counter()
    tab.goto(page.as_uri())
    tab.wait_for_selector("#groups details")
    tab.evaluate("() => new Promise(requestAnimationFrame)")
    assert tab.evaluate("document.querySelectorAll('figure canvas').length") > 1
    return time.perf_counter() - begun, tab, asked


def seconds(browser: Browser, page: Path, times: int = OPENED) -> Iterator[float]:
    """How long it takes to open, again and again."""
    for _ in range(times):
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


def long_runs(
    browser: Browser, place: Path, real: Path, steps: int, runs: int, before: Path | None
) -> Iterator[Figure]:
    """One long run and many."""
    many = place / "many"
    for number in range(runs):
        make_long(many / f"run{number:02d}", real, steps, number // CONFIGURATIONS, number % CONFIGURATIONS)
    one = many / "run00"
    for name, folder, most in ((f"{steps} steps", one, 2.0), (f"{runs} runs of {steps} steps", many, 5.0)):
        old = earlier(browser, before, folder, name) if before else []
        for run in sorted(many.iterdir()) if folder == many else ():  # each has ended with a report of its own
            html([read_run(run)], Beside(run))
        begun = time.perf_counter()
        page = write_report(folder, [read_run(folder)] if folder == one else find_runs([folder]))
        yield Figure(f"{name}: writing the report", time.perf_counter() - begun, "s")
        begun = time.perf_counter()
        write_report(folder, [read_run(folder)] if folder == one else find_runs([folder]))
        yield Figure(f"{name}: writing it again", time.perf_counter() - begun, "s")
        times = list(seconds(browser, page))
        yield median_ratio(f"{name}: until the page is open", times, "s", most=most)
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
        for figure, now in zip(old, (sum(times) / len(times), page.stat().st_size / 1e6), strict=False):
            yield figure
            yield Figure(f"{figure.name}, over today's", figure.value / now, "")
    yield from followed(one, steps)


def followed(folder: Path, steps: int) -> Iterator[Figure]:
    """What it takes to make the page of a run that goes on anew, after so many steps and after ten times as many."""
    lines = (folder / METRICS).read_text().splitlines()
    taken = [line for line in lines if '"train/lr"' in line]
    for times in (1, 10):
        live = Live([folder])
        live.page()
        took = []
        for number in range(5):
            with (folder / METRICS).open("a") as file:
                file.write(json.dumps(json.loads(taken[number]) | {"step": times * steps + number + 1}) + "\n")
            begun = time.perf_counter()
            live.page()
            took.append(time.perf_counter() - begun)
        yield Figure(f"--follow: the page anew after {times * steps} steps", sorted(took)[2], "s")
        with (folder / METRICS).open("a") as file:
            for number in range(steps + 10, 10 * steps + 1) if times == 1 else ():
                file.write(json.dumps(json.loads(taken[number % len(taken)]) | {"step": number}) + "\n")


def earlier(browser: Browser, checkout: Path, folder: Path, name: str) -> list[Figure]:
    """How long a page of an earlier revision takes to open, and how large it is."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(checkout)))}
    into = folder.parent / f"{folder.name}-before"
    command = [sys.executable, "src/report.py", str(folder), "--into", str(into)]
    subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
    page = into / "report.html"
    took = [opened(browser, page)[0]]
    size = page.stat().st_size / 1e6
    shutil.rmtree(into)
    return [
        Figure(f"{name}, before: until the page is open", took[0], "s"),
        Figure(f"{name}, before: the page", size, "MB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 steps, and 5 runs of 200")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier revision, to compare long runs with")
    asked = parser.parse_args()
    steps = 20 if asked.quick else 300
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as place, sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for kind, words in KINDS.items():
            folder = Path(place, kind)
            make_run(folder, steps, words)
            page = write_report(folder, [read_run(folder)])
            name = f"{steps} steps × {PROMPTS * SIZE} {kind} responses"
            figures.append(median_ratio(f"{name}: until the page is open", list(seconds(browser, page)), "s", most=2))
            _, tab, requests = opened(browser, page)
            figures.append(at_most(f"{name}: loaded until it is open", loaded(requests), "MB", 20))
            figures.append(Figure(f"{name}: steps to read on it", float(tab.evaluate("kept().length")), ""))
            tab.close()
        real = Path(place, "real")
        real_run(real)
        figures += long_runs(browser, Path(place), real, *((200, 5) if asked.quick else (LONG, RUNS)), asked.before)
        browser.close()
    write("page-quick" if asked.quick else "page", figures, load=os.getloadavg())


if __name__ == "__main__":
    main()
