"""How long the report of a long run takes to open, in a real browser, and how large it is.

    make chromium
    python benchmarks/page.py [--quick]

A run of 300 steps with 128 responses each, once short ones and once of 400 words drawn at random, which compress badly:
of those as many steps are on the page as it has room for. It is open once its curves are drawn and the first step's
groups can be read.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from playwright.sync_api import Browser, sync_playwright
from report import Figure, at_most, median_ratio, write

from callbacks.record import RunRecord
from callbacks.rollouts import RolloutLog
from callbacks.tags import FIRST
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.gradnorm.measure import GradNorms
from oblr.problem import Completion, Problem
from oblr.report.page import write_report
from oblr.report.runs import read_run
from oblr.types import LogprobGap, Moments, Rollout, RolloutBatch, StepReport

PROMPTS, SIZE = 16, 8
#: Words of a response.
KINDS = {"short": 20, "long": 400}
OPENED = 9
#: As long and as often as words are.
VOCABULARY = ["".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", k=3 + i % 8)) for i in range(5000)]


def step(words: int, draw: random.Random) -> StepReport:
    """What a step of 128 responses reports, with numbers that have all their digits."""
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
    return StepReport(
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
        weights=numbers,
        advantages=batch.rewards - batch.rewards.mean(1, keepdim=True),
        coefficients=numbers,
        group_squares=numbers.sum(1),
        log_ratios=numbers,
        entropy=1.0,
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


def seconds(browser: Browser, page: Path) -> Iterator[float]:
    """How long it takes to open, again and again."""
    for _ in range(OPENED):
        tab = browser.new_page()
        begun = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("details")
        yield time.perf_counter() - begun
        tab.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 steps")
    quick = parser.parse_args().quick
    steps = 20 if quick else 300
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as place, sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for kind, words in KINDS.items():
            folder = Path(place, kind)
            make_run(folder, steps, words)
            page = write_report(folder, [read_run(folder)])
            name = f"{steps} steps × {PROMPTS * SIZE} {kind} responses"
            figures.append(median_ratio(f"{name}: until the page is open", list(seconds(browser, page)), "s", most=2))
            figures.append(at_most(f"{name}: size of the page", page.stat().st_size / 1e6, "MB", 20))
            tab = browser.new_page()
            tab.goto(page.as_uri())
            tab.wait_for_selector("details")
            figures.append(Figure(f"{name}: steps to read on it", float(tab.evaluate("kept().length")), ""))
            tab.close()
        browser.close()
    write("page-quick" if quick else "page", figures)


if __name__ == "__main__":
    main()
