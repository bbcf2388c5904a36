"""A step that has found what is no number moves nothing, says which response it was, and is counted."""

import logging
import math
from dataclasses import replace

import pytest
import torch
from cases import wide
from conftest import POCKET, ROOT, same
from poisons import POISONS, spoilt
from step_statistics import make_statistics
from taken_steps import OneBatch, make_batch, take_steps
from torch import nn
from transformers import AutoModelForCausalLM

from callbacks.second_moments import SecondMoments
from callbacks.snr import SNRMonitor
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.value import ValueBaseline
from oblr.batch.types import Moments
from oblr.errors import RefusedError
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.policy.judgement import Drops, Fault, first_fault
from oblr.record.curves import read_curves
from oblr.run.checkpoint import load
from oblr.run.manifest import by_age
from oblr.schedules.snr import SNRSchedule


class Batches(OneBatch):
    """One after the other."""

    def __init__(self, *batches):
        self.batches = list(batches)

    def __iter__(self):
        yield self.batches.pop(0)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A policy's folder and three batches of its; of the second, response 13 is live and is not looked at before."""
    folder = tmp_path_factory.mktemp("model")
    batches = [make_batch(folder, True, drift=0.05 * (k + 1), rewards=rewards(k)) for k in range(3)]
    return folder, batches


def rewards(k):
    return [float((i + k) % 3 == 0 or i % 5 == k) for i in range(16)]


def trained(folder, batches, baseline=None, **settings):
    """What is left of a run: parameters, and everything that remembers earlier steps."""
    averages = SNRMonitor(), SecondMoments({"past": GradientWeightedBaseline(prior="past", decay=0.5)})
    policy, statistics = take_steps(
        folder,
        Batches(*batches),
        steps=len(batches),
        schedule=SNRSchedule(1e-3, "ema"),
        baseline=baseline or GradientWeightedBaseline(prior="past"),
        bound=1e3,
        observers=averages,
        optimizer=torch.optim.AdamW,
        **settings,
    )
    states = [policy.schedule, policy.baseline, *averages]
    return dict(policy.named_parameters()), [state.state_dict() for state in states], policy, statistics


@pytest.mark.parametrize("response", [0, *wide(13)])  # the first one is among those by which the engine is checked
def test_poisoned_steps_are_as_if_they_had_not_been(healthy, caplog, response):
    folder, (first, second, third) = healthy
    expected, averages, _, _ = trained(folder, [first, third])
    with caplog.at_level(logging.WARNING):
        poisoned = [spoilt(second, response, spoil) for spoil in POISONS.values()]
        found, kept, policy, statistics = trained(folder, [first, *poisoned, third])
    assert [stats.refused for stats in statistics] == [False, *[True] * len(POISONS), False]
    assert same(found, expected)
    torch.testing.assert_close(kept, averages, rtol=0, atol=0)
    lines = (record.getMessage() for record in caplog.records if record.name == "oblr.policy.judgement")
    place = f"response {response % 4 + 1} of 4 to prompt {response // 4 + 1} of 4 ({response}) on rank 0: "
    for step, (line, problem) in enumerate(zip(lines, POISONS, strict=True), 2):
        assert line.startswith(f"step {step} is refused and nothing moves: {place}")
        assert problem in line
    assert policy.refusals.count == policy.trainer.callback_metrics["train/refused"] == len(POISONS)
    assert {stats.lr for stats in statistics[1:-1]} == {0.0}


def aged(batch, age):
    return replace(batch, age=age, probe=batch.rollouts[:2])


def test_a_batch_that_is_too_old_is_as_if_it_had_not_been(healthy, caplog):
    folder, (first, second, third) = healthy
    expected, averages, _, _ = trained(folder, [first, third])
    with caplog.at_level(logging.WARNING):
        found, kept, policy, statistics = trained(folder, [first, aged(second, 1), third], max_noise=1.001)
    assert [stats.refused for stats in statistics] == [False, True, False]
    assert same(found, expected)
    torch.testing.assert_close(kept, averages, rtol=0, atol=0)
    assert (policy.drops.count, policy.refusals.count) == (1, 0)
    assert policy.trainer.callback_metrics["train/dropped"] == 1
    (line,) = (record.getMessage() for record in caplog.records if record.name == "oblr.policy.judgement")
    noise = statistics[1].growth
    assert noise > 1.001
    assert line == (
        "step 2 is dropped and nothing moves: its rollouts are of 1 steps before, which multiplies the second moment "
        f"of its gradients by {noise:.3g}, more than policy.max_noise=1.001"
    )
    assert trained(folder, [first, aged(second, 1), third], max_noise=noise + 1e-9)[2].drops.count == 0
    assert trained(folder, [first, aged(second, 1), third])[2].drops.count == 0


def test_the_step_of_a_batch_that_is_too_old_is_shortened_by_as_much(healthy):
    folder, (first, second, third) = healthy
    steps = [first, aged(second, 1), third]
    *_, policy, statistics = trained(folder, steps, max_noise=1.001, beyond="shorten")
    *_, whole = trained(folder, steps)
    assert [stats.refused for stats in statistics] == [False, False, False]
    assert policy.drops.count == policy.trainer.callback_metrics["train/dropped"] == 1
    assert statistics[0].lr == whole[0].lr
    assert statistics[1].growth == whole[1].growth > 1.001
    assert statistics[1].lr == whole[1].lr * (1.001 / whole[1].growth)
    assert policy.drops.factor == 1


@pytest.mark.parametrize(("beyond", "again"), [("drop", [False] * 3), ("again", [False, True, False])])
def test_only_a_batch_that_is_dropped_and_asked_for_again_is_sampled_anew(healthy, beyond, again):
    folder, (first, second, third) = healthy
    steps, found = [first, aged(second, 1), third], []
    judge = Drops.judge

    def noted(self, stats, step):
        dropped = judge(self, stats, step)
        found.append(self.asks_again())
        return dropped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drops, "judge", noted)
        *_, statistics = trained(folder, steps, max_noise=1.001, beyond=beyond)
    assert [stats.refused for stats in statistics] == [False, True, False]
    assert found == again


def test_rollouts_of_the_policy_as_it_is_are_never_too_old(healthy):
    """After as many drops as the rollouts are steps old, it has not moved since: what is left is rounding."""
    folder, (first, second, third) = healthy
    steps = [first, *[aged(second, 2)] * 3, aged(third, 1), aged(third, 1)]
    *_, policy, statistics = trained(folder, steps, max_noise=1.001)
    assert [stats.refused for stats in statistics] == [False, True, True, False, True, False]
    assert policy.drops.count == 3


def test_what_was_studied_of_a_refused_step_is_not_learnt(healthy):
    folder, (first, second, third) = healthy
    expected, averages, _, _ = trained(folder, [first, third], ValueBaseline())
    poisoned = spoilt(second, 13, POISONS["reward is nan"])
    found, kept, _, _ = trained(folder, [first, poisoned, third], ValueBaseline())
    assert same(found, expected)
    torch.testing.assert_close(kept, averages, rtol=0, atol=0)


def test_a_batch_is_not_used_again_once_it_is_refused(healthy):
    folder, (first, second, third) = healthy
    poisoned = spoilt(second, 13, POISONS["gradient overflows"])
    *_, policy, statistics = trained(folder, [first, poisoned, third], updates_per_batch=3)
    assert policy.refusals.count == 1
    assert [stats.refused for stats in statistics] == [False, True, False]


def test_a_ratio_that_is_truncated_may_be_as_large_as_it_likes(healthy):
    """It is a logarithm until the loss has done what bounds it."""
    folder, (_, second, _) = healthy
    poisoned = spoilt(second, 13, POISONS["weight in the baseline is inf"])
    _, _, _, (stats,) = trained(folder, [poisoned], loss=PolicyGradientLoss(truncate=2.0))
    assert not stats.refused
    assert stats.log_ratios[3, 1] == pytest.approx(400, abs=1)
    assert stats.moments.finite


def test_ten_in_a_row_end_the_run(healthy):
    folder, (first, second, third) = healthy
    poisoned = spoilt(second, 13, POISONS["reward is nan"])
    *_, policy, _ = trained(folder, [*[poisoned] * 9, first, *[poisoned] * 2])
    assert (policy.refusals.count, policy.refusals.streak) == (11, 2)
    words = r"steps 3 to 12 were all refused.*response 2 of 4 to prompt 4.* reward is nan.*as step 2 left it"
    with pytest.raises(RefusedError, match=words):
        trained(folder, [first, third, *[poisoned] * 11])


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"scores": torch.tensor([[1.0, 0], [0, 1], [1, NAN]])}, Fault(2, 1, "its reward is nan")),  # of a dead group
        ({"rewards": torch.tensor([[1.0, 0], [0, INF], [1, 1]])}, Fault(1, 1, "its reward less its KL penalty is inf")),
        (
            {"reward_weights": torch.tensor([[1.0, 0], [INF, 0], [0, 0]])},
            Fault(1, 0, "its weight in the baseline is inf"),
        ),
        ({"advantages": torch.tensor([[1.0, NAN], [0, 0], [0, 0]])}, Fault(0, 1, "its advantage is nan")),
        ({"coefficients": torch.tensor([[1.0, INF], [0, 0], [0, 0]])}, Fault(0, 1, "its coefficient is inf")),
        ({"group_squares": torch.tensor([1, INF, 0])}, (1, 0)),
        ({"moments": Moments(3, 1.0, INF)}, (0, 1)),
        ({"moments": Moments(3, NAN, 1.0)}, (0, 1)),
    ],
)
def test_what_is_looked_at_and_whom_it_names(changes, fault):
    found = first_fault(make_statistics(**changes))
    if isinstance(fault, Fault) or fault is None:
        assert found == fault
    else:
        assert found[:2] == fault
        assert "the gradient overflows" in found.problem


@pytest.mark.wide
def test_a_run_that_meets_nothing_else_saves_itself_and_ends(train, tmp_path, monkeypatch):
    """By the real command line; what is saved last is the policy of the last good step."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"))
    result = train(
        *("~callbacks.evaluation", "schedule=constant", "schedule.lr=1e-3", "steps=40", "rollout.max_new_tokens=32"),
        *("callbacks.checkpoints.every=3", "callbacks.checkpoints.keep=9"),
        "+callbacks.poison={_target_: poisons.Poison, start: 3}",
    )
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: steps 4 to 13 were all refused, the last one as response 8 of 8 to prompt 4 of 4 (")
    assert "its log π − log μ is nan" in line
    assert line.endswith("then go on with ckpt_path=last); see docs/testing.md")
    warnings = [said for said in result.stdout.splitlines() if "is refused and nothing moves" in said]
    assert [int(said.split("step ")[1].split()[0]) for said in warnings] == list(range(4, 14))
    steps, counts = read_curves(tmp_path / "run")["train/refused"]
    assert dict(zip(steps, counts, strict=True)) == {step: max(0, step - 3) for step in range(1, 14)}
    saved = {path.name: path for path in by_age(tmp_path / "run" / "checkpoints")}
    last, good, start = (parameters(saved.get(name)) for name in ("step-00013.ckpt", "step-00003.ckpt", None))
    assert same(last, good)
    assert not same(last, start)


def parameters(checkpoint):
    """Those of a checkpoint, or those that a run starts from."""
    policy = nn.ModuleDict({"scorer": nn.ModuleDict({"lm": AutoModelForCausalLM.from_pretrained(POCKET)})})
    if checkpoint is not None:
        load(checkpoint, policy, None)
    return dict(policy.named_parameters())
