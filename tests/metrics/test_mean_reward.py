"""Rewards of any range: what they are called, and an interval that holds."""

import io
import math
import random
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from scipy import stats

from callbacks.evaluation import HeldOutEvaluation
from callbacks.summary import held_out_cells, summary_table
from oblr.batch.types import Sampling
from oblr.evaluation.attempts import Attempts
from oblr.evaluation.measures import differences, measure
from oblr.metrics.accuracy import ProblemAccuracy, quantile, student, wilson
from oblr.record.curves import read_curves
from oblr.record.figures import outcome
from oblr.record.logger import RunRecord
from oblr.record.tags import FIRST, first

RANGES = {
    "partial": (0.0, 0.1, 1.0, 1.1),
    "minus one and zero": (-1.0, 0.0),
    "minus one to one": (-1.0, 1.0),
    "large": (-300.0, 2.0, 1e6),
    "nearly one": (0.0, 1.0 - 1e-6),
    "halves": (0.5,),
}


def draw(values, problems, tries, seed):
    rng = random.Random(seed)
    return torch.tensor([[rng.choice(values) for _ in range(tries)] for _ in range(problems)])


def computed(scores):
    metric = ProblemAccuracy()
    for part in scores.split(3):  # as ranks have them
        metric.update(part)
    return metric


@pytest.mark.parametrize("problems", [1, 2, 30])
@pytest.mark.parametrize("name", RANGES)
def test_any_range_has_a_mean_between_its_ends(name, problems):
    for seed in range(5):
        scores = draw(RANGES[name], problems, 2, seed)
        metric = computed(scores)
        interval, graded = metric.compute(), bool(((scores != 0) & (scores != 1)).any())
        assert bool(metric.graded) == graded
        assert interval.mean == pytest.approx(scores.double().mean().item())
        if problems > 1 or not graded:
            assert interval.low <= interval.mean <= interval.high
        else:
            assert math.isnan(interval.low)
            assert math.isnan(interval.high)


def test_zeros_and_ones_are_an_accuracy():
    scores = draw((0.0, 1.0), 40, 1, 0)
    metric = computed(scores)
    assert not metric.graded
    assert metric.compute() == pytest.approx(wilson(scores.mean().item(), 40))


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 63, 255, 4000])
def test_students_quantile(freedom):
    assert quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    values = [0.3, -2.0, 5.5, 1.0]
    expected = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert student(sum(values) / 4, stats.tstd(values), 4)[1:] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["partial", "minus one to one"])
def test_the_interval_holds_the_mean(name):
    truth = sum(RANGES[name]) / len(RANGES[name])
    held = [
        low <= truth <= high for _, low, high in (computed(draw(RANGES[name], 16, 4, s)).compute() for s in range(400))
    ]
    assert 0.92 <= sum(held) / len(held) <= 0.98


class HeldOut:
    weights = clock = None

    def __init__(self, *evaluations):
        self.held_out, self.sampling, self.left = ["a", "b"], Sampling(8, 1.0, 16, (0,)), list(evaluations)
        self.engine = SimpleNamespace(sleep=lambda: None)

    def rollouts(self, problems, sampling, seeds):
        rewards = self.left.pop(0)
        return [SimpleNamespace(reward=reward) for reward in rewards]


def test_a_run_whose_rewards_turn_out_to_be_others_has_one_curve_of_means(tmp_path):
    """Nothing is right at first, so that all rewards are 0; then some are 1.1."""
    record = RunRecord(str(tmp_path))
    data = HeldOut([0.0, 0.0], [0.0] * 4, [0.0, 1.1], [0.0, 1.1, 1.1, 1.1], [0.0, 0.0], [-1.0] * 4)
    trainer = SimpleNamespace(datamodule=data, loggers=[record], current_epoch=0, global_rank=0, world_size=1)
    callback = HeldOutEvaluation(every=5, samples=2)
    for step in (0, 5, 10):
        if step == 10:
            state, callback = callback.state_dict(), HeldOutEvaluation(every=5, samples=2)
            callback.load_state_dict(state)  # a resumed run goes on under the name that it had
        trainer.current_epoch = step
        callback.evaluate(trainer)
    curves = read_curves(tmp_path)
    assert curves["eval/sampled_reward"] == ([0, 5, 10], pytest.approx([0.0, 0.825, -1.0]))
    assert curves["eval/greedy_reward"] == ([0, 5, 10], pytest.approx([0.0, 0.55, 0.0]))
    assert not any("accuracy" in tag for tag in curves)
    assert callback.best == pytest.approx(0.825)
    assert outcome(tmp_path)["eval/sampled_area"] == pytest.approx(0.1625)
    cells = held_out_cells(curves, "sampled", "reward")
    assert len(cells) == 3
    assert not any("%" in cell for cell in cells)
    console = Console(width=100, file=io.StringIO())
    console.print(summary_table(curves))
    shown = console.file.getvalue()
    assert "held-out mean reward, sampled" in shown
    assert "accuracy" not in shown
    assert [title for title in first(curves) if "held-out" in title] == ["held-out mean reward"]
    assert first(["eval/sampled_accuracy"]) == FIRST


def test_what_is_best_may_be_below_zero():
    data = HeldOut([-1.0, -2.0], [-1.0, -2.0, -2.0, -2.0])
    trainer = SimpleNamespace(datamodule=data, loggers=[], current_epoch=0, global_rank=0, world_size=1)
    callback = HeldOutEvaluation(every=5, samples=2)
    callback.evaluate(trainer)
    assert callback.best == -1.75


def tried(rewards, number=0):
    n = len(rewards)
    return Attempts(str(number), "", "7", [""] * n, ["7"] * n, list(rewards), [1] * n, [True] * n)


@pytest.mark.parametrize("name", RANGES)
def test_nothing_is_called_solved_where_rewards_are_no_verdicts(name):
    graded = [tried(row, number) for number, row in enumerate(draw(RANGES[name], 8, 4, 0).tolist())]
    right = [tried([1.0, 0.0, 0.0, 1.0], number) for number in range(8)]
    assert list(measure(right, [1, 4])) == ["avg@4", "pass@4", "maj@4", "length", "truncated"]
    figures = measure(graded, [1, 4])
    assert list(figures) == ["reward", "length", "truncated"]
    assert figures["reward"].low <= figures["reward"].mean <= figures["reward"].high
    for pair in ((graded, right), (right, graded)):  # one kind of figure for both runs
        assert list(differences(*pair, [1, 4])) == ["reward", "length", "truncated"]
