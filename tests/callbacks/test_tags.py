"""Every logged number, from statistics made by hand, beside what it is worked out to by hand."""

import html
import io
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import make_rollouts
from rich.console import Console
from step_statistics import LENGTHS, NAN, Policy, Watch, make_statistics

from callbacks import throughput
from callbacks.evaluation import HeldOutEvaluation
from callbacks.grad_stats import GradStats, unmeasured
from callbacks.monitors import (
    BaselineBlowUp,
    EntropyCollapse,
    LearningRateCollapse,
    Monitors,
    OwnSampleDependence,
)
from callbacks.rollouts import shares
from callbacks.samples import sample_table
from callbacks.scoring import ScoringFailures
from callbacks.second_moments import SecondMoments
from callbacks.snr import LARGE, SNRMonitor
from callbacks.summary import summary_table
from callbacks.throughput import Throughput
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.group_mean import GroupMeanBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.types import Moments, RolloutBatch
from oblr.gradnorm.measure import GradNorms
from oblr.metrics.accuracy import wilson
from oblr.metrics.aggregate import Interval
from oblr.policy.statistics import tags
from oblr.record.figures import outcome
from oblr.record.logger import RunRecord
from oblr.run.timing import Stopwatch


def logged(callback, *statistics, step=0, **fields):
    """What the last of the statistics makes the callback log."""
    for stats in statistics:
        watch = Watch(**fields)
        trainer = SimpleNamespace(current_epoch=step, is_global_zero=True, loggers=[], world_size=4)
        callback.on_step(trainer, watch, stats)
    return watch.logged


def test_the_step():
    stats = make_statistics(scores=torch.tensor([[1.0, 0], [0, 0.5], [1, 1]]))
    assert tags(stats) == pytest.approx(
        {
            "train/reward": 3.5 / 6,
            "train/live_groups": 2 / 3,
            "train/entropy": 1.25,
            "train/lr": 0.02,
            "rollout/logprob_gap_mean": 0.001,
            "rollout/logprob_gap_p99": 0.01,
            "rollout/logprob_gap_max": 0.25,
            "rollout/age": 0.0,
            "rollout/ess": 5**2 / (4 * 7),
            "rollout/growth": (4 + 64 + 9 + 1) / (4 + 32 + 9 + 1),
            "rollout/length": 20 / 6,
            "rollout/truncated": 1 / 6,
        }
    )


def test_the_effective_sample_size_is_of_live_groups_and_never_overflows():
    far = torch.tensor([[900.0, 0], [0, 0], [NAN, NAN]], dtype=torch.float64)
    assert tags(make_statistics(log_ratios=far))["rollout/ess"] == pytest.approx(1 / 4)
    assert tags(make_statistics(log_ratios=torch.full_like(far, -800)))["rollout/ess"] == pytest.approx(1)
    none_live = make_statistics(live=torch.zeros(3, dtype=torch.bool))
    assert math.isnan(tags(none_live)["rollout/ess"])


def test_what_age_makes_of_the_second_moment():
    """By norms, of live groups, whatever the size of the ratios; where none is known, by the ratios alone."""
    logs, norms = torch.log(torch.tensor([[2.0, 1], [0.5, 3], [NAN, NAN]])).double(), [[4.0, 1], [2, 3], [NAN, NAN]]
    given = {"log_ratios": logs, "square_norms": torch.tensor(norms).double()}
    expected = (4 * 4 + 1 + 0.25 * 2 + 9 * 3) / (2 * 4 + 1 + 0.5 * 2 + 3 * 3)
    assert make_statistics(**given).growth == pytest.approx(expected)
    assert make_statistics(**given | {"log_ratios": logs + 800}).growth == math.inf
    assert make_statistics(**given | {"log_ratios": logs + 400}).growth == pytest.approx(expected * math.exp(400))
    unknown = make_statistics(log_ratios=logs, square_norms=torch.full((3, 2), NAN).double())
    assert unknown.growth == pytest.approx(1 / unknown.effective_sample_size)


def test_gradient_norms():
    """Norms 2, 4, 3, 1 of 2, 4, 1, 3 tokens; spreads 6 of 10 and 4 of 5."""
    assert logged(GradStats(), make_statistics()) == pytest.approx(
        {
            "gradnorm/mean": 2.5,
            "gradnorm/q10": 1.3,
            "gradnorm/q50": 2.5,
            "gradnorm/q90": 3.7,
            "gradnorm/cv_within_group": 0.7,
            "gradnorm/correlation_with_length": 0.2,
        }
    )
    assert logged(GradStats(), make_statistics(square_norms=torch.full((3, 2), NAN))) == {}


def test_norms_that_the_step_does_not_need(monkeypatch):
    """They are measured before it, and are there for the callbacks that follow; what the step finds stands."""
    found = torch.stack([measured().square_norms, torch.zeros(3, 2)], -1)
    trainer = SimpleNamespace(current_epoch=10, loggers=[], is_global_zero=True)
    monkeypatch.setattr("callbacks.grad_stats.measure", lambda policy, batch, wanted: found)
    policy = Watch(baseline=RLOOBaseline(), clock=Stopwatch())
    callback, stats = GradStats(every=5), make_statistics(square_norms=torch.full((3, 2), NAN))
    callback.on_rollouts(trainer, policy, stats.batch)
    callback.on_step(trainer, policy, stats)
    assert torch.equal(stats.square_norms, found[..., 0])
    assert stats.ratios.tolist() == [[1, 2], [1, 1], [1, 1]]
    assert policy.logged["gradnorm/mean"] == pytest.approx(2.5)  # of the groups that took part
    trainer.current_epoch = 11
    callback.on_rollouts(trainer, policy, stats.batch)
    assert callback.measured is None


def test_what_the_step_will_not_measure():
    """All without norms in the baseline; with them, groups that cannot have an advantage."""
    batch = RolloutBatch(make_rollouts(LENGTHS, [1, 0, 0, 1, 1, 1]), 2, 1)
    weighted, prior = GradientWeightedBaseline(), GradientWeightedBaseline(prior="past")

    def of(baseline, tier):
        return unmeasured(SimpleNamespace(baseline=baseline, gradnorm=GradNorms(tier)), batch).tolist()

    assert of(RLOOBaseline(), "exact") == of(weighted, "logit") == [True] * 3
    assert of(weighted, "exact") == [False, False, True]
    assert of(prior, "exact") == [False] * 3


def test_signal_to_noise():
    """tr H = 3/2 · (6 − 3) = 4.5; signal 3 − 4.5/3 = 1.5."""
    callback = SNRMonitor(decay=0.5)
    assert logged(callback, make_statistics()) == pytest.approx(
        {
            "snr/n_groups": 3,
            "snr/M1": 3,
            "snr/M2": 6,
            "snr/noise": 4.5,
            "snr/noise_scale": 3,
            "snr/plug_in": 2 / 3,
            "snr/debiased": 1 / 3,
            "snr/ema": 1 / 3,
            "snr/factor_plug_in": 2 / 3,
            "snr/factor_debiased": 1 / 2,
            "snr/factor_ema": 1 / 2,
        }
    )
    # averages (3 + 2·9)/3 and (6 + 2·12)/3: tr H = 3/2 · 3, signal 7 − 1.5
    second = logged(callback, make_statistics(moments=Moments(3, 9.0, 12.0)))
    assert second["snr/debiased"] == pytest.approx(7.5 / 4.5)
    assert second["snr/ema"] == pytest.approx(5.5 / 4.5)
    assert second["snr/factor_ema"] == pytest.approx(16.5 / 21)
    unanimous = logged(SNRMonitor(), make_statistics(moments=Moments(3, 6.0, 6.0)))
    assert unanimous["snr/plug_in"] == LARGE
    assert unanimous["snr/factor_plug_in"] == 1
    silent = logged(SNRMonitor(), make_statistics(moments=Moments(3, 0.0, 6.0)))
    assert silent["snr/noise_scale"] == LARGE
    assert silent["snr/factor_debiased"] == 0


#: Statistics of a step whose last group was measured beside it: weights ρ² n = 4, 64, 9, 1, 2, 3.
def measured(**changes):
    stats = make_statistics(**changes)
    stats.square_norms[2], stats.log_ratios[2] = torch.tensor([2.0, 3.0]), 0.0
    return stats


def test_second_moments_of_other_baselines():
    """Advantages ±1 of RLOO, and the rewards themselves, over all groups; without norms of the last for RLOO alone."""
    compared = {"rloo": RLOOBaseline(), "gradient_weighted": GradientWeightedBaseline(), "none": NoBaseline()}
    expected = {"baseline/gradient_weighted": 1.0, "baseline/none": (4 + 1 + 5) / 78}
    assert logged(SecondMoments(compared), measured()) == pytest.approx(expected)
    assert logged(SecondMoments(compared), make_statistics()) == pytest.approx({"baseline/gradient_weighted": 1.0})
    assert logged(SecondMoments(compared), make_statistics(square_norms=torch.full((3, 2), NAN))) == {}


def test_baselines_that_learn_are_compared_as_they_were_after_a_resume():
    def prior(source):
        return GradientWeightedBaseline(prior=source)

    watched = SecondMoments({"past": prior("past")})
    resumed = SecondMoments({"history": prior("history"), "past": prior("past")})
    logged(watched, measured())
    resumed.load_state_dict(watched.state_dict())
    assert resumed.baselines["history"].prior.sums == {}
    assert watched.baselines["past"].prior.sums.all()
    assert torch.equal(resumed.baselines["past"].prior.sums, watched.baselines["past"].prior.sums)


def test_a_baseline_learns_of_whole_steps_alone():
    """Of a step whose easy prompts are not known it would learn that gradients are long."""
    watched = SecondMoments({"past": GradientWeightedBaseline(prior="past")})
    logged(watched, make_statistics())
    assert not watched.baselines["past"].prior.sums.any()


class Late(NoBaseline):
    """Doubles its advantages with every step that it has learnt from."""

    factor = 1

    def __call__(self, groups):
        return self.factor * super().__call__(groups)

    def learn(self, groups, reduce=None):
        self.factor *= 2


def test_a_baseline_is_judged_before_it_learns():
    callback = SecondMoments({"none": NoBaseline(), "late": Late()})
    assert [logged(callback, measured())["baseline/late"] for _ in range(3)] == pytest.approx([1, 4, 16])


def test_failures_of_scoring():
    """Since the last step; and problems of this one that cannot be paid."""
    pool = SimpleNamespace(timeouts=3, errors=1)
    trainer = SimpleNamespace(datamodule=SimpleNamespace(reward_pool=pool))
    callback, first, second = ScoringFailures(), Watch(), Watch()
    stats = make_statistics()
    for watch, unpaid in ((first, 2), (second, 1)):
        callback.on_step(trainer, watch, replace(stats, batch=replace(stats.batch, unpaid=unpaid)))
        pool.timeouts = 5
    assert first.logged == {"reward/timeouts": 3, "reward/errors": 1, "reward/unpaid": 2}
    assert second.logged == {"reward/timeouts": 2, "reward/errors": 0, "reward/unpaid": 1}


def test_time(monkeypatch):
    now = iter([10.0, 14.0])
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    callback, clock = Throughput(), Stopwatch()
    clock.seconds |= {"gradient statistics": 1.5, "update": 2.0}
    callback.on_train_epoch_start(None, None)
    stats = make_statistics()
    stats = replace(stats, batch=replace(stats.batch, beside={"rollout": 3.0}))
    assert logged(callback, stats, clock=clock) == {
        "time/gradient_statistics": 1.5,
        "time/update": 2,
        "time/ahead_rollout": 3,
        "time/step": 4,
        "throughput/tokens_per_second": 5,  # 20 tokens, of all ranks
    }
    assert clock.seconds == {}


def test_monitors():
    """Effective sample sizes of four responses of equal, and of unequal, weight; rates and entropies against others."""
    weights = torch.tensor([[1.0, 1, 1, 1], [3, 1, 0, 0], [NAN] * 4], dtype=torch.float64)
    sized = make_statistics(reward_weights=weights, square_norms=weights)
    assert logged(Monitors(it=BaselineBlowUp(1.1, 3)), sized) == pytest.approx(
        {
            "monitor/effective_sample_size": (1 + 0.4) / 2,
            "monitor/effective_sample_size_median": (1 + 0.4) / 2,
            "monitor/effective_sample_size_worst": 0.4,
        }
    )
    assert logged(Monitors(it=LearningRateCollapse(0.01, 3)), make_statistics()) == pytest.approx(
        {"monitor/lr_factor": 0.2}
    )
    lengths = torch.tensor(LENGTHS, dtype=torch.float64).view(3, 2)
    entropies = (make_statistics(entropies=mean * lengths) for mean in (2.0, 1.0))
    assert logged(Monitors(it=EntropyCollapse(0.1, 3, decay=0.5)), *entropies) == {"monitor/entropy_share": 0.75}
    found = logged(Monitors(it=OwnSampleDependence(every=3)), make_statistics(), step=3, baseline=GroupMeanBaseline())
    assert found == pytest.approx({"monitor/own_sample_dependence": 1 / 2})


class HeldOut:
    """Two problems of four tries each, of which 3 and 1 are right; greedily the first alone."""

    held_out = ("a", "b")
    sampling = SimpleNamespace
    engine = SimpleNamespace(sleep=lambda: None)

    def __init__(self):
        from oblr.batch.types import Sampling

        self.sampling, self.asked = Sampling(8, 0.7, 16, (0,)), []

    def rollouts(self, problems, sampling, seeds):
        self.asked.append((sampling.n, sampling.temperature, seeds))
        rewards = [1, 0] if sampling.temperature == 0 else [1, 1, 1, 0, 0, 0, 0, 1]
        return [SimpleNamespace(reward=float(reward)) for reward in rewards]


def test_held_out_accuracy():
    written, data = {}, HeldOut()
    logger = SimpleNamespace(log_metrics=lambda metrics, step: written.update(metrics, step=step))
    trainer = SimpleNamespace(datamodule=data, loggers=[logger], current_epoch=7, global_rank=0, world_size=1)
    callback = HeldOutEvaluation(every=5, samples=4)
    callback.best = 0.25
    callback.evaluate(trainer)
    sampled, greedy = wilson(0.5, 0.25 / (0.0625 / 2)), wilson(0.5, 2)
    ends = ("accuracy", "low", "high")
    assert written == pytest.approx(
        {
            **{f"eval/sampled_{end}": value for end, value in zip(ends, sampled, strict=True)},
            **{f"eval/greedy_{end}": value for end, value in zip(ends, greedy, strict=True)},
            "eval/best": 0.5,
            "step": 7,
        }
    )
    (greedy_n, cold, _), (n, warm, seeds) = data.asked
    assert (greedy_n, cold, n, warm) == (1, 0.0, 4, 0.7)
    callback.evaluate(trainer)
    assert data.asked[-1][2] == seeds  # the same at every evaluation
    assert len(set(seeds)) == 2


def test_the_best_is_the_sampled_accuracy(monkeypatch):
    found = {0.0: Interval(0.9, 0.8, 1.0), 0.7: Interval(0.3, 0.2, 0.4)}
    monkeypatch.setattr(HeldOutEvaluation, "accuracy", lambda self, _, sampling: found[sampling.temperature])
    callback, trainer = HeldOutEvaluation(every=5), SimpleNamespace(datamodule=HeldOut(), loggers=[])
    for sampled, best in ((0.3, 0.3), (0.2, 0.3), (0.4, 0.4)):
        found[0.7] = Interval(sampled, 0.1, 0.5)
        callback.evaluate(trainer)
        assert callback.best == best


def test_the_outcome_of_a_run_is_where_its_curves_end_and_their_areas(tmp_path):
    record = RunRecord(str(tmp_path))
    for step, accuracy in ((0, 0.2), (10, 0.8), (20, 0.5)):
        record.log_metrics({"eval/sampled_accuracy": accuracy, "train/reward": 1.0}, step)
    assert outcome(tmp_path) == pytest.approx({"eval/sampled_accuracy": 0.5, "eval/sampled_area": 0.575})
    assert outcome(tmp_path / "elsewhere") == {}


def test_the_summary_has_first_and_last_values():
    ends = {"accuracy": [0.25, 0.5], "low": [0.2, 0.4], "high": [0.3, 0.6]}
    curves = {f"eval/sampled_{end}": ([0, 10], values) for end, values in ends.items()}
    console = Console(width=100, file=io.StringIO())
    console.print(summary_table(curves | {"train/lr": ([0, 1, 2], [0.01, 0.5, 0.003])}))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.file.getvalue().splitlines()]
    assert ["held-out accuracy, sampled", "25.0%  [20.0%, 30.0%]", "50.0%  [40.0%, 60.0%]"] in rows
    assert ["learning rate", "0.01", "0.003"] in rows


def table_of(stats, rows):
    lines = sample_table(stats, shares(Policy(), stats), rows).markdown().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_a_response_is_text_and_stays_in_its_cell():
    """Neither markup, nor a mark that turns lines round, nor a million characters."""
    stats = make_statistics()
    hostile = "so |x| =\n2 <script>alert(1)</script> \u202e" + "x" * 10**6
    stats.batch.rollouts[0] = replace(stats.batch.rollouts[0], text=hostile)
    best, *_ = table_of(stats, rows=1)
    assert not re.search(r"[<>|\[\]`*_]", best[2].replace("<br>", ""))
    read = html.unescape(best[2].replace("<br>", "\n"))
    assert read.startswith("so |x| =\n2 <script>alert(1)</script> \\u202exxx")
    assert read.endswith(f"x… ({len(hostile)} characters)")
    assert len(read) < 2100


@pytest.mark.parametrize("first", [0, 1])
def test_samples_are_the_best_the_worst_and_those_of_most_of_the_update(first):
    stats = make_statistics(first)
    shown = table_of(stats, rows=2)
    assert [row[0] for row in shown] == ["best", "best", "worst", "worst", "largest share", "largest share"]
    expected = ["+1.000", "+0.500", "-1.000", "-0.500", "-1.000", "+1.000"]
    of_second_rank = ["+0.500", "+0.000", "-0.500", "+0.000", "-0.500", "+0.500"]
    assert [row[4] for row in shown] == (of_second_rank if first else expected)
    best, *_ = table_of(stats, rows=1)
    i = 1 if first else 0
    share = {0: "16.7%", 1: "4.2%"}[first]  # lengths 1, 4, 3/4 and 1/4 of parts
    assert best[2:] == [stats.batch.rollouts[i].text, "1", best[4], f"{stats.reward_weights[first, i]:.3g}", share]


def test_without_shares_none_is_the_largest():
    stats = make_statistics(square_norms=torch.full((3, 2), NAN))
    assert {row[0] for row in table_of(stats, rows=2)} == {"best", "worst"}


def test_histograms_are_of_norms_not_of_their_squares(monkeypatch):
    seen = []

    def shown(trainer, tag, values):
        seen.append((tag, values.flatten().tolist(), trainer.current_epoch))

    monkeypatch.setattr("callbacks.grad_stats.show", shown)
    logged(GradStats(), make_statistics(), step=4)
    assert seen == [
        ("gradnorm/per_sample", [2, 4, 3, 1], 4),
        ("train/advantages", [1.0, -1, -0.5, 0.5], 4),
        ("train/ratios", [1.0, 2, 1, 1], 4),
    ]
