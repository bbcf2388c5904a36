"""Each failure is brought about, is warned of once, and is named with a setting that exists."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, make_rollouts

from callbacks.monitors import (
    BaselineBlowUp,
    EntropyCollapse,
    LearningRateCollapse,
    Monitor,
    Monitors,
    OwnSampleDependence,
    own_sample_dependence,
)
from oblr.baselines.base import Groups, all_groups
from oblr.baselines.batch_mean import BatchMeanBaseline
from oblr.baselines.gradient_weighted import PRIORS, GradientWeightedBaseline
from oblr.baselines.group_mean import GroupMeanBaseline
from oblr.baselines.group_mean_std import GroupMeanStdBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.opo import OPOBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.baselines.shrinkage import ShrinkageBaseline
from oblr.batch.types import LogprobGap, Moments, RolloutBatch, StepStatistics
from oblr.record.curves import read_curves
from oblr.schedules.annealed import AnnealedSchedule
from oblr.schedules.decay import CosineSchedule
from oblr.schedules.noise import NoiseSchedule
from oblr.schedules.snr import SNRSchedule

NAN = float("nan")
REWARDS = [1, 0, 0, 1, 1, 1, 1, 1, 0.5, 0, 0, 1]  # the second group is dead
HEALTHY = torch.tensor([[1.0, 2, 3, 1], [NAN] * 4, [2, 1, 1, 5]], dtype=torch.float64)
DOMINATED = torch.tensor([[1e-9, 2, 1e-9, 1e-9], [NAN] * 4, [1e9, 1, 1, 5]], dtype=torch.float64)


def make_statistics(weights=HEALTHY, entropy=1.0, lr=0.05, square_mean=2.0) -> StepStatistics:
    batch = RolloutBatch(make_rollouts([3, 9, 1, 4, 6, 6, 6, 6, 1, 30, 2, 8], REWARDS), 4, 1)
    live = torch.tensor([True, False, True])
    return StepStatistics(
        batch=batch,
        first=0,
        problems=batch.problems,
        scores=batch.rewards,
        rewards=batch.rewards,
        greedy_rewards=None,
        lengths=batch.lengths,
        finished=batch.finished,
        live=live,
        square_norms=weights,
        reward_weights=weights,
        advantages=torch.zeros(3, 4),
        coefficients=torch.zeros(3, 4),
        group_squares=torch.zeros(3),
        log_ratios=torch.zeros(3, 4),
        entropies=batch.lengths * entropy,
        logprob_gap=LogprobGap(0.0, 0.0, 0.0),
        moments=Moments(3, square_mean / 2, square_mean),
        lr=lr,
    )


class Run:
    """Feeds statistics to one monitor as a trainer does; keeps the curves."""

    def __init__(self, monitor: Monitor, baseline=None, schedule=None, start: int = 0, rank: int = 0):
        self.callback, self.step, self.curves, self.rank = Monitors(only=monitor), start, {}, rank
        self.policy = SimpleNamespace(
            baseline=baseline or GradientWeightedBaseline(),
            schedule=schedule or SNRSchedule(0.1),
            log_dict=lambda metrics: [self.curves.setdefault(tag, []).append(v) for tag, v in metrics.items()],
        )

    def __call__(self, *statistics: StepStatistics) -> None:
        for stats in statistics:
            trainer = SimpleNamespace(current_epoch=self.step, is_global_zero=self.rank == 0)
            self.callback.on_step(trainer, self.policy, stats)
            self.step += 1


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "callbacks.monitors"]


FAILURES = {
    "learning rate": (lambda: LearningRateCollapse(bound=0.01, patience=3), {"lr": 0.0005}),
    "baseline": (lambda: BaselineBlowUp(bound=1.1, patience=3), {"weights": DOMINATED}),
    "entropy": (lambda: EntropyCollapse(bound=0.1, patience=3, decay=0.5), {"entropy": 0.001}),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_is_warned_of_once(kind, caplog):
    make, sign = FAILURES[kind]
    run = Run(make())
    run(*[make_statistics()] * 5)
    assert warnings(caplog) == []
    run(*[make_statistics(**sign)] * 20)
    assert len(warnings(caplog)) == 1
    run(*[make_statistics()] * 10, *[make_statistics(**sign)] * 20)  # it ends, and comes back
    assert len(warnings(caplog)) == 2
    caplog.clear()
    Run(make(), rank=1)(*[make_statistics(**sign)] * 20)
    assert warnings(caplog) == []


def test_one_healthy_group_does_not_hide_that_the_others_are_dominated(caplog):
    weights = torch.tensor([[1e9, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1e9, 1]], dtype=torch.float64)
    stats = replace(make_statistics(weights), live=torch.tensor([True] * 3))
    run = Run(BaselineBlowUp(bound=1.1, patience=1))
    run(*[stats] * 3)
    assert len(warnings(caplog)) == 1
    assert "effective sample size 1.00 of 4" in warnings(caplog)[0]


@pytest.mark.parametrize("kind", FAILURES)
def test_a_single_step_is_no_failure(kind, caplog):
    make, sign = FAILURES[kind]
    run = Run(make())
    for _ in range(5):
        run(make_statistics(), make_statistics(), make_statistics(), make_statistics(**sign))
    assert warnings(caplog) == []


@pytest.mark.parametrize("kind", FAILURES)
def test_a_resumed_run_is_silent_about_what_it_has_warned_of(kind, caplog):
    make, sign = FAILURES[kind]
    whole, first = Run(make()), Run(make())
    statistics = [make_statistics(), *[make_statistics(**sign)] * 9]
    whole(*statistics, *statistics[1:])
    first(*statistics)
    resumed = Run(make(), start=first.step)
    caplog.clear()
    resumed.callback.load_state_dict(first.callback.state_dict())
    resumed(*statistics[1:])
    assert warnings(caplog) == []
    assert resumed.callback.state_dict() == whole.callback.state_dict()
    (tag, *_) = whole.curves
    assert first.curves[tag] + resumed.curves[tag] == whole.curves[tag]


def test_the_warning_says_what_happened_and_when(caplog):
    run = Run(LearningRateCollapse(bound=0.01, patience=3), schedule=SNRSchedule(0.1, "debiased"))
    run(*[make_statistics(lr=0.0005)] * 5)
    (message,) = warnings(caplog)
    assert message.startswith("step 3: the learning rate has collapsed to 0.005 of eta0")
    assert "schedule.estimator=ema" in message
    assert "schedule.floor" in message
    assert run.curves == {"monitor/lr_factor": [pytest.approx(0.005)] * 5}


def test_the_noise_schedule_is_watched_too(caplog):
    run = Run(LearningRateCollapse(bound=0.01, patience=3), schedule=NoiseSchedule(0.1))
    run(make_statistics(lr=0.0, square_mean=0.0), *[make_statistics(lr=0.0005)] * 5)
    (message,) = warnings(caplog)
    assert message.startswith("step 4: the learning rate has collapsed to 0.005 of eta0; lower eta0, or raise")
    assert " schedule.level_steps " in message
    assert run.curves == {"monitor/lr_factor": [pytest.approx(0.005)] * 5}
    caplog.clear()
    decayed = Run(LearningRateCollapse(bound=0.01, patience=3), schedule=AnnealedSchedule(NoiseSchedule(0.1), 1000))
    decayed(*[make_statistics(lr=0.0005)] * 3)
    (message,) = warnings(caplog)
    assert " schedule.schedule.level_steps " in message  # as conf/schedule/noise_linear.yaml has it


def test_the_settings_that_warnings_name_exist(caplog):
    for make, sign in FAILURES.values():
        Run(make(), schedule=SNRSchedule(0.1, "debiased"))(make_statistics(), *[make_statistics(**sign)] * 9)
    Run(LearningRateCollapse(0.01, 3), schedule=NoiseSchedule(0.1))(*[make_statistics(lr=0.0005)] * 5)
    Run(OwnSampleDependence(every=1), baseline=GroupMeanBaseline())(make_statistics())
    advice = " ".join(warnings(caplog))
    options = set(re.findall(r"\b(\w+)=(\w+)", re.sub(r"\w+\.\w+=\w+", "", advice)))
    settings = set(re.findall(r"\b([a-z]+)\.([a-z_0-9]+)\b", advice))
    assert len(options) == 3
    assert len(settings) == 10
    for group, option in options:
        assert (ROOT / "conf" / group / f"{option}.yaml").exists()
    for group, setting in settings:
        files = [path.read_text() for path in (ROOT / "conf" / group).glob("*.yaml")]
        assert any(re.search(rf"^{setting}:", text, flags=re.MULTILINE) for text in files), f"{group}.{setting}"


def test_rates_that_are_small_by_design_are_no_collapse(caplog):
    cosine = CosineSchedule(0.1, steps=100)
    run = Run(LearningRateCollapse(0.01, 3), schedule=cosine)
    run(*[make_statistics(lr=cosine(Moments(3, 1, 2), step)) for step in range(120)])
    warm_up = SNRSchedule(0.1, warm_up=1000)
    other = Run(LearningRateCollapse(0.01, 3), schedule=warm_up)
    other(*[make_statistics(lr=warm_up(Moments(3, 1, 2), step)) for step in range(1010)])
    decayed = Run(LearningRateCollapse(0.01, 3), schedule=AnnealedSchedule(NoiseSchedule(0.1), steps=1000))
    decayed(*[make_statistics(lr=0.1 * (1 - step / 1000)) for step in range(1000)], make_statistics(lr=0.0))
    assert warnings(caplog) == []
    assert run.curves == {}
    assert len(other.curves["monitor/lr_factor"]) == 10
    assert decayed.curves["monitor/lr_factor"] == [pytest.approx(1.0)] * 1000


def test_steps_without_a_gradient_say_nothing_of_the_rate(caplog):
    run = Run(LearningRateCollapse(0.01, 3), schedule=SNRSchedule(0.1, "plug_in"))
    run(*[make_statistics(lr=0.0, square_mean=0.0)] * 10)
    assert warnings(caplog) == []


@pytest.mark.parametrize("size", [2, 3])
def test_groups_of_two_are_not_watched_and_those_of_three_are(size):
    """Of two, the weights of the other one alone decide nothing."""
    run = Run(BaselineBlowUp(1.1, 3))
    weights = torch.tensor([[4.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]], dtype=torch.float64)[:, :size]
    statistics = make_statistics()
    columns = {name: getattr(statistics, name)[:, :size] for name in ("rewards", "advantages", "log_ratios")}
    run(replace(statistics, reward_weights=weights, **columns))
    assert ("monitor/effective_sample_size" in run.curves) is (size == 3)


def test_effective_sample_sizes():
    run = Run(BaselineBlowUp(1.1, 3))
    run(make_statistics(), make_statistics(torch.zeros(3, 4, dtype=torch.float64)))
    sizes = [49 / 15 / 4, 81 / 31 / 4]
    assert run.curves["monitor/effective_sample_size"] == [pytest.approx(sum(sizes) / 2), 1.0]
    assert run.curves["monitor/effective_sample_size_median"] == [pytest.approx(sum(sizes) / 2), 1.0]
    assert run.curves["monitor/effective_sample_size_worst"] == [pytest.approx(min(sizes)), 1.0]


def test_weights_that_do_not_matter_are_not_watched():
    run = Run(BaselineBlowUp(1.1, 3), baseline=RLOOBaseline())
    run(make_statistics(DOMINATED))
    nothing_live = make_statistics()
    nothing_live.live = torch.zeros(3, dtype=torch.bool)
    other = Run(BaselineBlowUp(1.1, 3))
    other(nothing_live)
    assert run.curves == other.curves == {}


INDEPENDENT = {
    "none": NoBaseline(),
    "rloo": RLOOBaseline(),
    "opo": OPOBaseline(),
    "batch_mean": BatchMeanBaseline(),
    "shrinkage": ShrinkageBaseline(),
    "gradient_weighted": GradientWeightedBaseline(),
    "cross_fitted": GradientWeightedBaseline("cross_fitted"),
    **{f"prior={name}": GradientWeightedBaseline(prior=name) for name in PRIORS},
}
DEPENDENT = {
    "group_mean": GroupMeanBaseline(),
    "group_mean_std": GroupMeanStdBaseline(),
    "opo, pooled": OPOBaseline(pooled=True),
    "gradient_weighted, pooled": GradientWeightedBaseline("pooled"),
    "batch_mean, normalised": BatchMeanBaseline(normalise=True),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_an_unbiased_baseline_does_not_know_its_own_sample(name, caplog):
    baseline, stats = INDEPENDENT[name], make_statistics()
    run = Run(OwnSampleDependence(every=2), baseline=baseline)
    run(*[stats] * 2)
    baseline.learn(all_groups(stats).of(stats.live))
    before = repr(baseline.state_dict())
    run(*[stats] * 2)  # also with a history
    assert warnings(caplog) == []
    assert max(run.curves["monitor/own_sample_dependence"]) < 1e-12
    assert len(run.curves["monitor/own_sample_dependence"]) == 2
    assert repr(baseline.state_dict()) == before


@pytest.mark.parametrize("name", DEPENDENT)
def test_a_biased_baseline_is_found_out_once(name, caplog):
    stats = make_statistics()
    rewards, weights = stats.batch.rewards.clone(), stats.reward_weights.clone()
    run = Run(OwnSampleDependence(every=2), baseline=DEPENDENT[name])
    run(*[stats] * 6)
    (message,) = warnings(caplog)
    assert message.startswith("step 1: the baseline depends on its own sample")
    assert "baseline.form=leave_one_out" in message
    assert min(run.curves["monitor/own_sample_dependence"]) > 0.01
    assert torch.equal(stats.batch.rewards, rewards)
    torch.testing.assert_close(stats.reward_weights, weights, rtol=0, atol=0, equal_nan=True)
    resumed = Run(OwnSampleDependence(every=2), baseline=DEPENDENT[name], start=6)
    resumed.callback.load_state_dict(run.callback.state_dict())
    resumed(stats)
    assert len(warnings(caplog)) == 1


def test_the_mean_of_a_group_depends_on_each_reward_by_one_over_its_size():
    rewards = make_statistics().batch.rewards.double()
    group = Groups(rewards[2:], HEALTHY[2:], torch.ones(1, 4, dtype=torch.int64), rewards, step_weights=HEALTHY)
    assert own_sample_dependence(GroupMeanBaseline(), group, 2) == pytest.approx(1 / 4)


def test_steps_without_an_entropy_change_nothing():
    run = Run(EntropyCollapse(0.1, 3))
    run(
        make_statistics(entropy=NAN),
        make_statistics(entropy=2.0),
        make_statistics(entropy=NAN),
        make_statistics(entropy=1.0),
    )
    assert run.curves["monitor/entropy_share"] == [1.0, pytest.approx(0.95)]


@pytest.mark.wide
def test_a_run_warns_on_the_terminal_and_in_the_log_and_only_once(train, tmp_path):
    provoked = [
        "baseline.form=pooled",
        *("schedule=snr", "schedule.estimator=debiased"),
        *("callbacks.monitors.learning_rate.bound=2", "callbacks.monitors.learning_rate.patience=2"),
        *("callbacks.monitors.baseline.bound=100", "callbacks.monitors.baseline.patience=2"),
        *("callbacks.monitors.entropy.bound=2", "callbacks.monitors.entropy.patience=2"),
    ]
    result = train("steps=3", *provoked)
    assert result.returncode == 0, result.stderr
    shown = [line for line in result.stdout.splitlines() if line.startswith("warning")]
    assert len(shown) == 4, result.stdout
    log = (tmp_path / "run" / "train.log").read_text()
    for step, kind, setting in (
        (1, "own sample", "baseline.form=leave_one_out"),
        (2, "learning rate", "schedule.estimator=ema"),
        (2, "weight of its group", "gradnorm=logit"),
        (2, "entropy", "eta0"),
    ):
        (line,) = [line for line in shown if kind in line]
        assert line.startswith(f"warning     step {step}: ")
        assert setting in line
        assert log.count(line.removeprefix("warning     ")) == 1
    resumed = train("steps=5", "ckpt_path=last", *provoked)
    assert resumed.returncode == 0, resumed.stderr
    assert "warning" not in resumed.stdout
    curves = read_curves(tmp_path / "run")
    assert curves["monitor/own_sample_dependence"][0] == [1]
    for name in ("lr_factor", "effective_sample_size", "effective_sample_size_worst", "entropy_share"):
        assert curves[f"monitor/{name}"][0] == list(range(1, 6)), name
