"""The whole step against published objectives: autograd in float64, one sequence and one token at a time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from cases import wide
from conftest import tiny_model
from taken_steps import GROUP_SIZE, LENGTHS, REWARDS, TEMPERATURE, make_batch, take_steps
from torch import Tensor

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.otb import OTBBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.baselines.value import ValueBaseline
from oblr.batch.types import ResponseTokens
from oblr.errors import SettingError
from oblr.gradnorm.measure import GradNorms
from oblr.kinds import LARGEST
from oblr.losses.base import Surrogate
from oblr.losses.capo import CAPOLoss
from oblr.losses.cispo import CISPOLoss
from oblr.losses.ess import ESSLoss
from oblr.losses.gepo import GEPOLoss
from oblr.losses.gspo import GSPOLoss
from oblr.losses.kl import KLPenalty
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.losses.ppo_clip import PPOClipLoss
from oblr.policy.step import PolicyModule
from oblr.schedules.constant import ConstantSchedule

G = GROUP_SIZE
DRIFT, BOUND = 0.3, 5.0
#: tokens in a micro-batch: the one cuts most groups, the other holds two of them
BUDGETS = {"cut": 30, "whole": 100}
BETA = 0.2


# --- the oracle -----------------------------------------------------------------------------------------------------


@dataclass
class Response:
    """One response under a policy: its tokens' log-probabilities, a leaf to differentiate by, and their gradients.

    ``gradients`` is [T, P]: ``∇θ log π_t`` with all parameters laid end to end.
    """

    logs: Tensor
    behaviour: Tensor
    reference: Tensor
    energy: Tensor
    hidden: Tensor
    gradients: Tensor
    reward: float

    def __len__(self) -> int:
        return len(self.logs)

    @property
    def ratios(self) -> Tensor:
        return (self.logs - self.behaviour).exp()

    @property
    def ratio(self) -> Tensor:
        return (self.logs - self.behaviour).sum().exp()

    @property
    def mean_ratio(self) -> Tensor:
        return (self.logs - self.behaviour).mean().exp()


def flat(gradients) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def distributions(lm, rollout) -> tuple[Tensor, Tensor]:
    """What the head sees before each token of the response [T, D], and the log-probabilities it makes of it [T, V]."""
    tokens = torch.tensor([rollout.prompt_ids + rollout.completion.token_ids])
    hidden = lm.base_model(tokens).last_hidden_state[0, len(rollout.prompt_ids) - 1 : -1]
    return hidden, (lm.lm_head(hidden) / TEMPERATURE).log_softmax(-1)


def measure(lm, batch, reference) -> list[list[Response]]:
    """The groups of a batch under the policy ``lm``."""
    responses = []
    for rollout in batch.rollouts:
        targets = torch.tensor(rollout.completion.token_ids)[:, None]
        hidden, table = distributions(lm, rollout)
        logs = table.gather(1, targets).squeeze(1)
        gradients = [flat(torch.autograd.grad(log, list(lm.parameters()), retain_graph=True)) for log in logs]
        with torch.no_grad():
            responses.append(
                Response(
                    logs=logs.detach().requires_grad_(),
                    behaviour=torch.tensor(rollout.completion.logprobs).double(),
                    reference=distributions(reference, rollout)[1].gather(1, targets).squeeze(1),
                    energy=(torch.zeros_like(table).scatter(1, targets, 1.0) - table.exp()).square().sum(1),
                    hidden=hidden.detach(),
                    gradients=torch.stack(gradients),
                    reward=rollout.reward,
                )
            )
    return [responses[q * G : (q + 1) * G] for q in range(batch.n_groups)]


def response_gradients(objective: Tensor, group: list[Response]) -> list[Tensor]:
    """What each response contributes to the objective's gradient, [P] each."""
    slopes = torch.autograd.grad(objective, [response.logs for response in group])
    return [slope @ response.gradients for slope, response in zip(slopes, group, strict=True)]


# --- published objectives -------------------------------------------------------------------------------------------


def surrogate(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def one(response, group) -> float:
    return 1.0


def length(response, group) -> float:
    return len(response)


def per_response(response, group) -> float:
    return 1 / len(response)


def per_group(response, group) -> float:
    return G / sum(map(len, group))


@dataclass(frozen=True)
class Case:
    """A loss, its objective, and the factor that the objective of each response has by its length.

    ``objective`` is a function of a response, its advantage [] or those of its tokens [T], and its group. ``unclipped``
    is the objective without what is clipped by the sign of the advantage, where that differs.
    """

    loss: Callable[[], Surrogate]
    objective: Callable[[Response, Tensor, list[Response]], Tensor]
    scale: Callable[[Response, list[Response]], float] = one
    unclipped: Callable[[Response, Tensor, list[Response]], Tensor] | None = None

    def of(self, group: list[Response], advantages: list[Tensor], clips: bool = True) -> Tensor:
        objective = self.objective if clips or self.unclipped is None else self.unclipped
        values = [
            self.scale(response, group) * objective(response, advantage, group).sum()
            for response, advantage in zip(group, advantages, strict=True)
        ]
        return torch.stack(values).sum() / G


def sequence(cap: float = math.inf):
    """``sg[min(ρ, C)] A log π``: without a cap that has the gradient of ``ρ A``."""
    if cap == math.inf:
        return lambda r, a, group: r.ratio * a
    return lambda r, a, group: r.ratio.detach().clamp(max=cap) * a * r.logs


def token(low: float = -math.inf, high: float = math.inf):
    return lambda r, a, group: r.ratios.detach().clamp(low, high) * a * r.logs


def plain(r, a, group):
    return a * r.logs


def unclipped_tokens(r, a, group):
    return r.ratios * a


def ppo(low, high):
    return lambda r, a, group: surrogate(r.ratios, a, low, high)


def gspo(low, high):
    return lambda r, a, group: surrogate(r.mean_ratio, a, low, high)


def gspo_token(low, high):
    """Equation 13 of arXiv 2507.18071."""
    return lambda r, a, group: surrogate(r.mean_ratio.detach() * (r.logs - r.logs.detach()).exp(), a, low, high)


def gepo(clip):
    def objective(response, advantage, group):
        sampler = torch.stack([other.behaviour.mean().exp() for other in group])
        weight = response.logs.mean().exp() / (sampler / sampler.sum() * sampler).sum()
        return surrogate(weight, advantage, clip, clip)

    return objective


def effective(ratios):
    return ratios.detach().mean().square() / ratios.detach().square().mean()


def ess_of_responses(response, advantage, group):
    most = effective(torch.stack([other.ratio for other in group]))
    return response.ratio.detach().minimum(most) * advantage * response.logs


def ess_of_tokens(response, advantage, group):
    return response.ratios.detach().minimum(effective(response.ratios)) * advantage * response.logs


def capo(step, policy_shift, objective_shift):
    def objective(response, advantage, group):
        directional = advantage * response.energy  # over ‖h‖², which the step contains
        policy = 0.5 * step**2 * directional**2
        shift = step * advantage * directional + 0.5 * step**2 * advantage * directional**2
        kept = (policy < policy_shift) & (shift.abs() < objective_shift)
        return kept * surrogate(response.ratios, advantage, 0.2, 0.2)

    return objective


INF = math.inf
PPO = Case(PPOClipLoss, ppo(0.2, 0.28), one, unclipped_tokens)
CISPO = Case(lambda: CISPOLoss(0.1, 0.2), token(0.9, 1.2))
CASES = {
    "sequence": Case(PolicyGradientLoss, sequence()),
    "sequence-response": Case(lambda: PolicyGradientLoss(normalise="response"), sequence(), per_response),
    "sequence-group": Case(lambda: PolicyGradientLoss(normalise="group"), sequence(), per_group),
    "sequence-truncated": Case(lambda: PolicyGradientLoss(truncate=1.2), sequence(1.2)),
    "token": Case(lambda: PolicyGradientLoss("token"), unclipped_tokens),
    "token-truncated-group": Case(lambda: PolicyGradientLoss("token", 1.2, "group"), token(high=1.2), per_group),
    "none": Case(lambda: PolicyGradientLoss("none"), plain),
    "none-response": Case(lambda: PolicyGradientLoss("none", normalise="response"), plain, per_response),
    "ppo": PPO,
    "grpo": Case(lambda: PPOClipLoss(0.2, 0.2, "response"), ppo(0.2, 0.2), per_response, unclipped_tokens),
    "dapo": Case(lambda: PPOClipLoss(normalise="group"), ppo(0.2, 0.28), per_group, unclipped_tokens),
    "gspo": Case(lambda: GSPOLoss(0.02, 0.03), gspo(0.02, 0.03), one, gspo(INF, INF)),
    "luspo": Case(lambda: GSPOLoss(normalise="none"), gspo(3e-4, 4e-4), length, gspo(INF, INF)),
    "cispo": CISPO,
    "cispo-group": Case(lambda: CISPOLoss(LARGEST, 0.1, "group"), token(high=1.1), per_group),
    "ess": Case(ESSLoss, ess_of_responses),
    "ess-token": Case(lambda: ESSLoss("token", "group"), ess_of_tokens, per_group),
    "gepo": Case(GEPOLoss, gepo(INF)),
    "gepo-clipped": Case(lambda: GEPOLoss(0.2, "none"), gepo(0.2), length, gepo(INF)),
    "capo": Case(lambda: CAPOLoss(1e-2, 2e-5), capo(1e-2, 2e-5, 1e-2), one, unclipped_tokens),
    "capo-response": Case(
        lambda: CAPOLoss(2e-2, 1e-2, 5e-3, normalise="response"), capo(2e-2, 1e-2, 5e-3), per_response, unclipped_tokens
    ),
}


# --- the step as it should be ---------------------------------------------------------------------------------------


@dataclass
class Expected:
    """What one step makes of a batch: ``weights`` and ``rewards`` [N, G], the gradients of groups [N, P]."""

    weights: Tensor
    rewards: Tensor
    ratios: Tensor
    groups: Tensor

    @property
    def gradient(self) -> Tensor:
        return self.groups.mean(0)


def ones(group: list[Response]) -> list[Tensor]:
    return [torch.ones((), dtype=torch.float64) for _ in group]


def optimal_weights(case: Case, group: list[Response]) -> list[float]:
    """``‖z_i Σ_t f_it ∇θ log π_it‖²``: of what the advantage multiplies, if its sign clips nothing."""
    gradients = response_gradients(case.of(group, ones(group), clips=False), group)
    return [(G * gradient).square().sum().item() for gradient in gradients]


def group_advantages(rewards: list[float], weights: list[float]) -> list[Tensor]:
    advantages = []
    for i, reward in enumerate(rewards):
        others = [j for j in range(G) if j != i]
        baseline = sum(weights[j] * rewards[j] for j in others) / sum(weights[j] for j in others)
        advantages.append(torch.tensor(reward - baseline, dtype=torch.float64))
    return advantages


def expect(case: Case, groups: list[list[Response]], weighted=True, kl=None, token_advantages=None) -> Expected:
    """``kl`` is k1, k2 or k3; ``token_advantages`` [n] take the place of the group's."""
    weights, rewards, gradients, start = [], [], [], 0
    for group in groups:
        own = [response.reward for response in group]
        if kl == "k1":
            divergences = [(response.behaviour - response.reference).sum().item() for response in group]
            own = [reward - BETA * divergence for reward, divergence in zip(own, divergences, strict=True)]
        weights.append(optimal_weights(case, group))
        rewards.append(own)
        if token_advantages is None:
            advantages = group_advantages(own, weights[-1] if weighted else [1.0] * G)
        else:
            advantages = list(token_advantages[start : start + sum(map(len, group))].split(list(map(len, group))))
            start += sum(map(len, group))
        objective = case.of(group, advantages)
        for response in group:
            log = response.logs - response.reference
            if kl == "k2":
                objective = objective - BETA / G * (0.5 * log.square()).sum()
            if kl == "k3":
                objective = objective - BETA / G * ((-log).exp() - 1 + log).sum()
        gradients.append(torch.stack(response_gradients(objective, group)).sum(0))
    ratios = [[response.ratio.item() for response in group] for group in groups]
    return Expected(*(torch.tensor(x, dtype=torch.float64) for x in (weights, rewards, ratios)), torch.stack(gradients))


class Oracle:
    """A policy in float64 that takes plain steps on a batch; the reference stays behind."""

    def __init__(self, batch, tied: bool):
        self.batch = batch
        self.lm, self.reference = tiny_model(tied).double(), tiny_model(tied).double()

    def measure(self) -> list[list[Response]]:
        return measure(self.lm, self.batch, self.reference)

    def move(self, gradient: Tensor, lr: float) -> None:
        """Up the objective."""
        parameters = list(self.lm.parameters())
        with torch.no_grad():
            for p, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
                p += lr * part.view_as(p)


def assert_gradient(policy, expected: Tensor) -> None:
    """A parameter at a time: small ones must not hide behind large."""
    parameters = dict(policy.scorer.lm.named_parameters())
    parts = expected.split([p.numel() for p in parameters.values()])
    for name, part in zip(parameters, parts, strict=True):
        assert distance(-policy.gradient[name].double().flatten(), part) < 1e-5, name


def assert_step(policy, stats, expected: Expected) -> None:
    assert_gradient(policy, expected.gradient)
    assert stats.moments.mean_square == pytest.approx(expected.gradient.square().sum().item(), rel=1e-5)
    assert stats.moments.square_mean == pytest.approx(expected.groups.square().sum(1).mean().item(), rel=1e-5)
    assert stats.moments.n_groups == len(expected.groups)
    live = stats.live
    torch.testing.assert_close(stats.ratios[live], expected.ratios[live], rtol=1e-4, atol=0)


def distance(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


# --- every loss -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    """The saved policy, rollouts that it has drifted away from, and what the oracle says of them."""
    folder = tmp_path_factory.mktemp("stale")
    batch = make_batch(folder, tied=True, drift=DRIFT)
    groups = Oracle(batch, tied=True).measure()
    expected = cache(lambda name, weighted: expect(CASES[name], groups, weighted))
    return folder, batch, groups, expected


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("tier", ["one", *wide("two", "uniform")])
@pytest.mark.parametrize("name", CASES)
def test_step_equals_autograd_through_the_published_objective(stale, name, tier, budget):
    folder, batch, _, expected = stale
    weighted = tier != "uniform"
    policy, (stats,) = take_steps(
        folder,
        batch,
        gradnorm=GradNorms("exact", tier) if weighted else GradNorms("uniform"),
        baseline=GradientWeightedBaseline() if weighted else RLOOBaseline(),
        loss=CASES[name].loss(),
        token_budget=BUDGETS[budget],
        bound=BOUND,
    )
    assert_step(policy, stats, expected(name, weighted))
    assert stats.live.tolist() == [True, True, False, True]
    if weighted:
        live, weights = stats.live, expected(name, weighted).weights
        torch.testing.assert_close(stats.reward_weights[live], weights[live], rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_no_two_of_these_losses_have_the_same_gradient(stale, name):
    """Ratios differ, clips bind, and lengths matter; otherwise the test above would tell nothing."""
    gradient = stale[3](name, True).gradient
    others = [other for other in CASES if other != name]
    assert min(distance(stale[3](other, True).gradient, gradient) for other in others) > 0.02
    case = CASES[name]
    if case.unclipped is not None:
        unclipped = Case(case.loss, case.unclipped, case.scale)
        assert distance(expect(unclipped, stale[2]).gradient, gradient) > 0.02


def test_budgets_cut_groups_and_hold_several(stale):
    sizes = [sum(rollout.n_tokens for rollout in stale[1].group(q)) for q in (0, 1, 3)]
    assert max(sizes) > BUDGETS["cut"]
    assert sum(sizes[:2]) < BUDGETS["whole"]


# --- penalties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "name", "weighted", "budget", "lr"),
    [
        ("k1", "sequence", True, "cut", 1e-3),
        ("k2", "ppo", True, "cut", 2e-2),
        ("k3", "cispo", False, "whole", 2e-2),
    ],
)
def test_penalties(tmp_path, kl, name, weighted, budget, lr):
    """Three steps, so that the policy leaves its reference; dead groups take part."""
    batch, steps = make_batch(tmp_path, tied=False, drift=DRIFT), 3
    policy, statistics = take_steps(
        tmp_path,
        batch,
        steps=steps,
        gradnorm=GradNorms("exact", "one"),
        baseline=GradientWeightedBaseline() if weighted else RLOOBaseline(),
        loss=CASES[name].loss(),
        schedule=ConstantSchedule(lr),
        token_budget=BUDGETS[budget],
        bound=BOUND,
        kl=KLPenalty(kl, BETA),
    )
    oracle = Oracle(batch, tied=False)
    for step, stats in enumerate(statistics):
        groups = oracle.measure()
        expected = expect(CASES[name], groups, weighted, kl)
        assert stats.live.all()
        torch.testing.assert_close(stats.rewards.double(), expected.rewards, rtol=0, atol=1e-5)
        assert stats.moments.square_mean == pytest.approx(expected.groups.square().sum(1).mean().item(), rel=1e-5)
        if weighted:  # ρ² has twice the rounding of a sum of up to 30 log-probabilities of 5 nats in float32
            torch.testing.assert_close(stats.reward_weights, expected.weights, rtol=2 * 30 * 5 * 2**-24, atol=0)
        oracle.move(expected.gradient, lr)
        if kl == "k1" or step > 0:  # elsewhere the policy still is the reference
            assert distance(expect(CASES[name], groups, weighted).gradient, expected.gradient) > 0.02
            assert expected.groups[2].norm() > 1e-3 * expected.gradient.norm()
    assert_step(policy, statistics[-1], expected)

    loaded = dict(tiny_model(tied=False).named_parameters())
    reference = dict(policy.reference.model.lm.named_parameters())
    assert reference.keys() == loaded.keys()
    assert all(torch.equal(p, loaded[name]) for name, p in reference.items())
    assert not any(torch.equal(p, loaded[name]) for name, p in policy.scorer.lm.named_parameters())
    assert not {id(p) for p in reference.values()} & {id(p) for p in policy.parameters()}
    assert len(list(policy.parameters())) == len(loaded)
    assert set(policy.state_dict()) == {f"scorer.lm.{name}" for name in tiny_model(tied=False).state_dict()}


# --- advantages of tokens -------------------------------------------------------------------------------------------

TOKEN_CASES = {
    "ppo": PPO,
    "cispo": CISPO,
    "sequence": Case(PolicyGradientLoss, lambda r, a, group: r.ratio.detach() * a * r.logs),
    "gspo": Case(lambda: GSPOLoss(0.02, 0.03), gspo_token(0.02, 0.03), per_response),
}
TOKEN_BASELINES = {"otb": OTBBaseline, "value": lambda: ValueBaseline(trace=0.9)}


def oracle_tokens(groups: list[list[Response]]) -> ResponseTokens:
    responses = [response for group in groups for response in group]
    lengths = torch.tensor([len(response) for response in responses])
    return ResponseTokens(
        logs=torch.cat([(response.logs - response.behaviour).detach() for response in responses]),
        energy=torch.cat([response.energy for response in responses]),
        sequences=torch.arange(len(responses)).repeat_interleave(lengths),
        behaviour=torch.stack([response.behaviour.sum() for response in responses]),
        lengths=lengths,
        group_size=G,
        hidden=torch.cat([response.hidden for response in responses]),
    )


def token_advantages(baseline, batch, groups: list[list[Response]], steps: int) -> Tensor:
    """Of the last of so many steps, in all of which the responses are these."""
    weights = torch.ones(batch.rewards.shape, dtype=torch.float64)
    step = Groups(batch.rewards, weights, batch.lengths, batch.rewards, None, oracle_tokens(groups))
    for _ in range(steps):
        advantages = baseline(step)
        baseline.study(step)
        baseline.learn(step)
    return advantages.double()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", TOKEN_CASES)
@pytest.mark.parametrize("baseline", TOKEN_BASELINES)
def test_advantages_of_tokens(stale, baseline, name, budget):
    folder, batch, groups, _ = stale
    case, steps = TOKEN_CASES[name], 2
    policy, statistics = take_steps(
        folder,
        batch,
        steps=steps,
        gradnorm=GradNorms("exact", "one"),
        baseline=TOKEN_BASELINES[baseline](),
        loss=case.loss(),
        token_budget=BUDGETS[budget],
        bound=BOUND,
    )
    advantages = token_advantages(TOKEN_BASELINES[baseline](), batch, groups, steps)
    assert_step(policy, statistics[-1], expect(case, groups, token_advantages=advantages))
    means = torch.stack([own.mean() for own in advantages.split(batch.lengths.flatten().tolist())])
    torch.testing.assert_close(statistics[-1].advantages.flatten().double(), means, rtol=0, atol=1e-5)
    first = token_advantages(TOKEN_BASELINES[baseline](), batch, groups, 1)
    assert torch.equal(first, advantages) == (baseline == "otb")


# --- several updates, and the shortest responses --------------------------------------------------------------------


def every_update(monkeypatch):
    """A list that fills with the statistics of every update: callbacks see a batch's last."""
    statistics, update = [], PolicyModule.update

    def spy(self, *arguments, **settings):
        statistics.append(update(self, *arguments, **settings))
        return statistics[-1]

    monkeypatch.setattr(PolicyModule, "update", spy)
    return statistics


def test_every_update_of_a_batch_is_a_step_of_its_own(tmp_path, monkeypatch):
    """On-policy at first; later updates see ratios, and clip them."""
    batch, statistics = make_batch(tmp_path, tied=False, drift=0.0), every_update(monkeypatch)
    policy, _ = take_steps(
        tmp_path, batch, loss=PPO.loss(), schedule=ConstantSchedule(0.02), token_budget=30, updates_per_batch=3
    )
    assert len(statistics) == 3
    oracle = Oracle(batch, tied=False)
    start = flat(oracle.lm.parameters()).detach().clone()
    for update_, stats in enumerate(statistics):
        groups = oracle.measure()
        expected = expect(PPO, groups)
        live = stats.live
        torch.testing.assert_close(stats.ratios[live], expected.ratios[live], rtol=1e-4, atol=0)
        torch.testing.assert_close(stats.reward_weights[live], expected.weights[live], rtol=1e-5, atol=0)
        assert ((stats.ratios[live] - 1).abs() > 0.05).any() == (update_ > 0)
        oracle.move(expected.gradient, 0.02)
    assert_step(policy, statistics[-1], expected)
    assert distance(expect(Case(PPO.loss, unclipped_tokens), groups).gradient, expected.gradient) > 0.02
    found = flat(policy.scorer.lm.parameters()).detach().double() - start
    assert distance(found, flat(oracle.lm.parameters()).detach() - start) < 1e-5


def test_no_update_uses_a_baseline_that_has_seen_its_own_batch(tmp_path, monkeypatch):
    batch, statistics = make_batch(tmp_path, tied=True, drift=0.0), every_update(monkeypatch)
    baseline = ValueBaseline()
    take_steps(tmp_path, batch, baseline=baseline, schedule=ConstantSchedule(0.02), updates_per_batch=2)
    assert len(statistics) == 2
    assert all(torch.equal(stats.advantages, batch.rewards) for stats in statistics)  # V = 0 in both
    assert baseline.solution is not None  # and no longer


class Learning(GradientWeightedBaseline):
    """Keeps what it is shown."""

    def __init__(self):
        super().__init__()
        self.studied, self.learnt = 0, []

    def study(self, groups):
        self.studied += len(groups.rewards)

    def learn(self, groups, reduce):
        self.learnt.append(groups.reward_weights)


def test_a_baseline_learns_once_from_a_batch_as_it_was_drawn(tmp_path, monkeypatch):
    """However many updates are made of it: the later ones have moved the policy."""
    batch, statistics, baseline = make_batch(tmp_path, tied=True, drift=0.0), every_update(monkeypatch), Learning()
    take_steps(tmp_path, batch, baseline=baseline, schedule=ConstantSchedule(0.02), updates_per_batch=2)
    first, second = (stats.reward_weights[stats.live] for stats in statistics)
    assert not torch.equal(first, second)
    assert baseline.studied == len(first)
    (learnt,) = baseline.learnt
    assert torch.equal(learnt, first)


class Recording(ConstantSchedule):
    def __init__(self):
        super().__init__(0.0)
        self.steps = []

    def __call__(self, moments, step):
        self.steps.append(step)
        return super().__call__(moments, step)


@pytest.mark.parametrize(("updates", "expected"), [(1, [0, 1, 2]), (2, [0, 0, 1, 1, 2, 2])])
def test_schedules_begin_with_step_0(tmp_path, updates, expected):
    batch, schedule = make_batch(tmp_path, tied=True, drift=0.0), Recording()
    take_steps(tmp_path, batch, steps=3, schedule=schedule, updates_per_batch=updates, bound=100.0)
    assert schedule.steps == expected


def test_a_batch_must_be_used(tmp_path):
    with pytest.raises(SettingError, match="updates_per_batch"):
        take_steps(tmp_path, None, updates_per_batch=0)


@pytest.fixture(scope="module")
def shortest(tmp_path_factory):
    """Responses of one token each: as many tokens as responses, whose coefficients could be taken for each other's."""
    folder = tmp_path_factory.mktemp("shortest")
    batch = make_batch(folder, tied=True, drift=DRIFT, lengths=[1] * len(LENGTHS), rewards=REWARDS)
    return folder, batch, Oracle(batch, tied=True).measure()


@pytest.mark.parametrize("budget", [12, 100])
@pytest.mark.parametrize("passes", ["one", "two"])
@pytest.mark.parametrize("name", ["ppo", "cispo", "sequence"])
def test_responses_of_one_token(shortest, name, passes, budget):
    folder, batch, groups = shortest
    settings = {"loss": CASES[name].loss(), "token_budget": budget, "bound": BOUND}
    policy, (stats,) = take_steps(folder, batch, gradnorm=GradNorms("exact", passes), **settings)
    expected = expect(CASES[name], groups)
    assert_step(policy, stats, expected)
    torch.testing.assert_close(stats.reward_weights[stats.live], expected.weights[stats.live], rtol=1e-5, atol=0)


@pytest.mark.parametrize("budget", [12, 100])
@pytest.mark.parametrize("name", ["ppo", "cispo"])
def test_responses_of_one_token_with_a_value(shortest, name, budget):
    folder, batch, groups = shortest
    settings = {"loss": CASES[name].loss(), "token_budget": budget, "bound": BOUND}
    policy, (_, stats) = take_steps(folder, batch, steps=2, baseline=ValueBaseline(), **settings)
    advantages = token_advantages(ValueBaseline(), batch, groups, 2)
    assert_step(policy, stats, expect(CASES[name], groups, token_advantages=advantages))
