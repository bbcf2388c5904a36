"""The step against the textbook: plain autograd on one sequence at a time."""

import math
from dataclasses import replace

import pytest
import torch
from cases import wide
from conftest import combine, log_gradients, square_norm, tiny_model
from living import tensors
from taken_steps import GROUP_SIZE, REWARDS, TEMPERATURE, OneBatch, make_batch, take_steps
from torch.nn.utils import parameters_to_vector

from callbacks.doctor import Doctor
from callbacks.grad_stats import GradStats
from oblr.baselines.base import Groups, all_groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.group_mean_std import GroupMeanStdBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.baselines.shrinkage import ShrinkageBaseline
from oblr.batch.packing import pack
from oblr.batch.types import RolloutBatch
from oblr.errors import SettingError, StaleEngineError
from oblr.gradnorm import contractions
from oblr.gradnorm.measure import GradNorms
from oblr.kinds import LARGEST
from oblr.losses.kl import KLPenalty
from oblr.policy import step
from oblr.policy.model import PolicyModel
from oblr.policy.step import PolicyModule
from oblr.run.ranks import Ranks
from oblr.schedules.constant import ConstantSchedule
from oblr.schedules.normalised import NormalisedSchedule
from oblr.schedules.snr import SNRSchedule


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("passes", ["one", "two"])
@pytest.mark.parametrize("token_budget", [1, 60, 10_000])  # one group, some, and all groups in a micro-batch
def test_step_equals_autograd_on_the_textbook_estimator(tmp_path, tied, passes, token_budget):
    batch = make_batch(tmp_path, tied)
    gradnorm = GradNorms("exact", passes)
    policy, (stats,) = take_steps(tmp_path, batch, gradnorm=gradnorm, token_budget=token_budget)

    lm = tiny_model(tied)
    gradients = log_gradients(lm, batch.rollouts, TEMPERATURE)
    norms = [square_norm(g) for g in gradients]
    ratios, entropies = [], []
    for rollout in batch.rollouts:
        with torch.no_grad():
            found = PolicyModel(lm, TEMPERATURE)(pack([rollout]))
        ratios.append(torch.exp(found.logprobs.double().sum() - sum(rollout.completion.logprobs)).item())
        entropies.append(found.entropy.double())

    groups = []
    for q in range(4):
        members = range(q * GROUP_SIZE, (q + 1) * GROUP_SIZE)
        weights = {j: ratios[j] ** 2 * norms[j] for j in members}
        coefficients = []
        for i in members:
            others = [j for j in members if j != i]
            baseline = sum(weights[j] * REWARDS[j] for j in others) / sum(weights[j] for j in others)
            coefficients.append(ratios[i] * (REWARDS[i] - baseline) / GROUP_SIZE)
        groups.append(combine([gradients[i] for i in members], coefficients))
    gradient = combine(groups, [1 / 4] * 4)

    difference = square_norm({name: found.double() + gradient[name] for name, found in policy.gradient.items()})
    assert (difference / square_norm(gradient)) ** 0.5 < 1e-5
    live = stats.live.repeat_interleave(GROUP_SIZE)
    torch.testing.assert_close(
        stats.square_norms.flatten()[live], torch.tensor(norms).double()[live], rtol=1e-5, atol=0
    )
    torch.testing.assert_close(stats.ratios.flatten()[live], torch.tensor(ratios).double()[live], rtol=1e-4, atol=0)
    assert stats.moments.mean_square == pytest.approx(square_norm(gradient), rel=1e-5)
    assert stats.moments.square_mean == pytest.approx(sum(square_norm(g) for g in groups) / 4, rel=1e-5)
    assert stats.moments.n_groups == 4
    tokens = torch.cat([entropy for entropy, alive in zip(entropies, live, strict=True) if alive])
    assert stats.entropy == pytest.approx(tokens.mean().item(), rel=1e-5)
    assert all(p.grad is None for p in policy.parameters())  # rollouts have their room


class Seeing(RLOOBaseline):
    """Keeps the rewards of the whole step."""

    def __call__(self, groups):
        self.seen = groups.step_rewards
        return super().__call__(groups)


@pytest.mark.parametrize("token_budget", [1, 60, 10_000])
def test_a_prior_from_the_step_has_the_weights_of_all_groups_in_each_micro_batch(tmp_path, token_budget):
    batch, baseline = make_batch(tmp_path, True), GradientWeightedBaseline(prior="step")
    gradnorm = GradNorms("exact")
    policy, (stats,) = take_steps(tmp_path, batch, gradnorm=gradnorm, baseline=baseline, token_budget=token_budget)
    gradients = log_gradients(tiny_model(True), batch.rollouts, TEMPERATURE)
    norms = torch.tensor([square_norm(gradient) for gradient in gradients], dtype=torch.float64)
    torch.testing.assert_close(stats.square_norms.flatten(), norms, rtol=1e-4, atol=0)
    torch.testing.assert_close(stats.advantages, GradientWeightedBaseline(prior="step")(all_groups(stats)))
    assert stats.live.all()
    assert (stats.advantages[2].abs() > 0.01).all()  # equal rewards are news to it
    coefficients = stats.ratios * stats.advantages / stats.advantages.numel()
    expected = combine(gradients, coefficients.flatten().tolist())
    difference = square_norm({name: found.double() + expected[name] for name, found in policy.gradient.items()})
    assert (difference / square_norm(expected)) ** 0.5 < 1e-5


def test_one_pass_has_no_weights_of_the_whole_step(tmp_path):
    prior = GradientWeightedBaseline(prior="step")
    with pytest.raises(SettingError, match=r"^gradnorm\.passes: .*use auto or two"):
        take_steps(tmp_path, make_batch(tmp_path, True), gradnorm=GradNorms(passes="one"), baseline=prior)


def test_baselines_see_the_rewards_of_all_ranks(tmp_path, monkeypatch):
    """Those of another rank come after this one's; `test_ranks.py` has real ranks."""
    batch, others, baseline = make_batch(tmp_path, tied=True), torch.full((2, GROUP_SIZE), 0.25), Seeing()
    both = lambda _, rows: torch.cat([rows, others]) if rows.ndim == 2 else rows  # noqa: E731
    monkeypatch.setattr(Ranks, "gather", both)
    take_steps(tmp_path, batch, baseline=baseline)
    assert torch.equal(baseline.seen, torch.cat([batch.rewards, others]))


def test_groups_of_equal_reward_cost_no_pass(tmp_path, monkeypatch):
    batch = make_batch(tmp_path, tied=True)
    packed = []
    original = PolicyModule.micro_batches

    def spy(self, batch, live):
        for groups, micro in original(self, batch, live):
            packed.extend(groups.tolist())
            yield groups, micro

    monkeypatch.setattr(PolicyModule, "micro_batches", spy)
    _, (stats,) = take_steps(tmp_path, batch)
    assert sorted(packed) == [0, 1, 3]
    assert stats.live.tolist() == [True, True, False, True]
    assert stats.square_norms[2].isnan().all()
    assert (stats.advantages[2] == 0).all()


class Dying(OneBatch):
    """A live batch, and from then on dead ones."""

    def __iter__(self):
        batch, rollouts = self.batch, [replace(rollout, reward=1.0) for rollout in self.batch.rollouts]
        self.batch = RolloutBatch(rollouts, GROUP_SIZE, 1)
        yield batch


@pytest.mark.parametrize("baseline", [GradientWeightedBaseline, ShrinkageBaseline])
def test_a_dead_batch_after_a_live_one_moves_nothing(tmp_path, baseline):
    """Neither by an old gradient nor by AdamW's momentum; nor by a gradient of zeros, which shrinkage makes."""
    batch = make_batch(tmp_path, tied=True)
    settings = {"schedule": ConstantSchedule(0.01), "optimizer": torch.optim.AdamW, "bound": 100.0}
    settings["baseline"] = baseline()
    once, _ = take_steps(tmp_path, Dying(batch), steps=1, **settings)
    thrice, statistics = take_steps(tmp_path, Dying(batch), steps=3, **settings)
    assert [stats.moments.square_mean > 0 for stats in statistics] == [True, False, False]
    for p, same in zip(once.parameters(), thrice.parameters(), strict=True):
        assert torch.equal(p, same)


@pytest.mark.parametrize(
    "settings", [{}, {"kl": KLPenalty("k3", 0.1)}, {"baseline": GradientWeightedBaseline(prior="past")}]
)
def test_normalised_steps_are_as_long_as_they_are_told(tmp_path, settings):
    batch = make_batch(tmp_path, tied=True)
    before = parameters_to_vector(tiny_model(tied=True).parameters())
    schedule = NormalisedSchedule(ConstantSchedule(0.01))
    policy, _ = take_steps(tmp_path, batch, schedule=schedule, **settings)
    moved = parameters_to_vector(policy.scorer.lm.parameters()) - before
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_a_batch_without_any_live_group_leaves_the_policy_alone(tmp_path):
    batch = make_batch(tmp_path, tied=True)
    dead = RolloutBatch(batch.rollouts[8:12], GROUP_SIZE, 1)
    both = RolloutBatch([*dead.rollouts, *dead.rollouts], GROUP_SIZE, 1)
    policy, (stats,) = take_steps(tmp_path, both, schedule=SNRSchedule(1.0), optimizer=torch.optim.AdamW)
    assert stats.lr == 0.0
    assert stats.moments.square_mean == 0.0
    before = dict(tiny_model(tied=True).named_parameters())
    assert all(torch.equal(p, before[name]) for name, p in policy.scorer.lm.named_parameters())


@pytest.mark.parametrize("baseline", [RLOOBaseline(), GroupMeanStdBaseline()])
def test_baselines_without_norms_take_no_norm_pass(tmp_path, monkeypatch, baseline):
    batch = make_batch(tmp_path, tied=True)
    monkeypatch.setattr(contractions.ExactNorms, "__call__", None)
    monkeypatch.setattr(step, "check", lambda *_: None)  # which takes them whatever the baseline
    _, (stats,) = take_steps(tmp_path, batch, baseline=baseline)
    assert stats.square_norms.isnan().all()
    expected = baseline(Groups(batch.rewards, stats.reward_weights, batch.lengths, batch.rewards))
    torch.testing.assert_close(stats.advantages, expected)
    assert stats.moments.mean_square > 0


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradient_statistics_are_those_of_the_step(tmp_path, precision):
    """Where the baseline needs no norms, they are as a step that needs them computes them, to the bit."""
    batch = make_batch(tmp_path, tied=True)
    _, (own,) = take_steps(tmp_path, batch, precision=precision)
    _, (stats,) = take_steps(
        tmp_path, batch, precision=precision, baseline=RLOOBaseline(), observers=[GradStats(every=1)]
    )
    assert own.live.tolist() == [True, True, False, True]
    assert torch.equal(stats.square_norms[own.live], own.square_norms[own.live])


def test_the_update_moves_by_the_rate_against_the_gradient(tmp_path):
    batch = make_batch(tmp_path, tied=True)
    before = dict(tiny_model(tied=True).named_parameters())
    policy, (stats,) = take_steps(tmp_path, batch, schedule=SNRSchedule(0.1, "plug_in"))
    assert 0 < stats.lr < 0.1
    for name, p in policy.scorer.lm.named_parameters():
        torch.testing.assert_close(p.data, before[name].data - stats.lr * policy.gradient[name])


class Living(Doctor):
    """Counts what is in memory after each step, beside what an observer of every step keeps."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_epoch_end(self, trainer, policy):
        trainer.callbacks[-1].statistics.clear()  # the tests' own
        self.found.append(tensors())


@pytest.mark.parametrize("passes", ["two", *wide("one")])
def test_no_step_leaves_anything_in_memory(tmp_path, passes):
    living = Living()
    batch, gradnorm = make_batch(tmp_path, True), GradNorms("exact", passes)
    take_steps(tmp_path, batch, gradnorm=gradnorm, observers=[living], steps=5)
    assert living.found[2] == living.found[3] == living.found[4]


def test_a_stale_engine_stops_the_run(tmp_path):
    batch = make_batch(tmp_path, tied=True, drift=0.5)
    with pytest.raises(StaleEngineError, match=r"stale: after sync 1 .*mean .*policy\.logprob_gap_mean=0\.01"):
        take_steps(tmp_path, batch, bound=0.01)


def test_of_old_rollouts_the_check_is_of_those_of_the_newest_weights(tmp_path):
    """They differ with reason; nothing but the probe tells a stale engine then."""
    old, fresh = (make_batch(tmp_path, tied=True, drift=drift) for drift in (0.5, 0.001))
    batch = replace(old, age=1, probe=fresh.rollouts[::4])
    _, (stats,) = take_steps(tmp_path, batch, bound=0.01)
    assert stats.logprob_gap.max < 0.01
    assert stats.effective_sample_size < 0.95
    with pytest.raises(StaleEngineError, match=r"stale: after sync 2 .*mean .*policy\.logprob_gap_mean=0\.01"):
        take_steps(tmp_path, replace(fresh, age=1, probe=old.rollouts[::4]), bound=0.01)
    with pytest.raises(ValueError, match="empty"):  # never is it left out
        take_steps(tmp_path, replace(fresh, age=1), bound=0.01)


def off_by(batch: RolloutBatch, gap: float, tokens: int) -> RolloutBatch:
    """The engine's log-probabilities of the first tokens of the first response are others."""
    first, *others = batch.rollouts
    logprobs = [lp + gap * (t < tokens) for t, lp in enumerate(first.completion.logprobs)]
    first = replace(first, completion=replace(first.completion, logprobs=logprobs))
    return replace(batch, rollouts=[first, *others])


def test_a_single_token_may_be_off_but_not_many(tmp_path):
    """As in bfloat16, where tails are heavy."""
    batch = make_batch(tmp_path, tied=True, drift=0.01, lengths=[64] * 16)
    _, (stats,) = take_steps(tmp_path, off_by(batch, 5.0, tokens=1), bound=0.1)
    assert stats.logprob_gap.mean < stats.logprob_gap.p99 < 0.1 < stats.logprob_gap.max
    packed = pack(batch.rollouts[:8])
    with torch.no_grad():
        gaps = (PolicyModel(tiny_model(tied=True), TEMPERATURE)(packed).logprobs - packed.behaviour_logprobs).abs()
    gaps[0] = stats.logprob_gap.max
    assert stats.logprob_gap.mean == pytest.approx(gaps.mean().item(), rel=1e-3)
    assert stats.logprob_gap.p99 == pytest.approx(gaps.sort().values[round(0.99 * (len(gaps) - 1))].item(), rel=0.05)
    with pytest.raises(StaleEngineError, match=r"p99 .*policy\.logprob_gap_p99=0\.1"):
        take_steps(tmp_path, off_by(batch, 1.0, tokens=20), bound=0.1)


def test_the_mean_and_the_quantile_have_bounds_of_their_own(tmp_path):
    """Of 512 tokens 20 are off by 1 nat."""
    batch = off_by(make_batch(tmp_path, tied=True, drift=0.01, lengths=[64] * 16), 1.0, tokens=20)
    take_steps(tmp_path, batch, bound=0.1, bound_p99=2.0)
    with pytest.raises(StaleEngineError, match=r"the mean .*logprob_gap_mean=0\.02"):
        take_steps(tmp_path, batch, bound=0.02, bound_p99=2.0)


@pytest.mark.parametrize(("length", "checked"), [(12, 8), (55, 3), (250, 1)])
def test_the_check_is_no_larger_than_a_micro_batch(tmp_path, monkeypatch, length, checked):
    """It keeps no activations, but all of its responses are in one forward pass."""
    monkeypatch.setattr("oblr.policy.step.CHECKED_TOKENS", 200)
    batch = make_batch(tmp_path, tied=True, lengths=[length] * 16)
    seen = []
    own = PolicyModel.forward
    monkeypatch.setattr(PolicyModel, "forward", lambda model, packed: seen.append(packed) or own(model, packed))
    take_steps(tmp_path, batch)
    assert seen[0].segments.count == checked


@pytest.mark.parametrize("gap", [math.nan, math.inf])
def test_an_engine_without_any_number_stops_the_run_whatever_the_bounds(tmp_path, gap):
    """A response without one is refused instead, see `test_judgement.py`."""
    batch = make_batch(tmp_path, tied=True)
    numberless = [replace(r.completion, logprobs=[gap] * len(r.completion.logprobs)) for r in batch.rollouts]
    rollouts = [replace(r, completion=completion) for r, completion in zip(batch.rollouts, numberless, strict=True)]
    batch = replace(batch, rollouts=rollouts)
    with pytest.raises(StaleEngineError, match="is inf nats"):
        take_steps(tmp_path, batch, bound=LARGEST)
