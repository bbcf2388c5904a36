"""Every loss against a plain loop over tokens, and against autograd through the objective as it is published."""

import math
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from conftest import ROOT
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.errors import SettingError
from oblr.losses.base import Normalise
from oblr.losses.policy_gradient import Ratio

N, G = 5, 4


@dataclass
class Response:
    """One response: log-probabilities of its tokens, and its advantage, or one for each token.

    ``policy`` is a leaf; the published objectives are differentiated with respect to it.
    """

    policy: Tensor
    behaviour: Tensor
    energy: Tensor
    advantage: float
    token_advantages: Tensor

    def __len__(self) -> int:
        return len(self.policy)

    @property
    def ratios(self) -> Tensor:
        return (self.policy - self.behaviour).exp()


Group = list[Response]


def draw(seed: int = 0, drift: float = 0.3) -> list[Group]:
    """N groups of G responses, of 1 to 6 tokens; the policy has drifted from the behaviour policy by that much."""
    generator = torch.Generator().manual_seed(seed)

    def rand(n: int) -> Tensor:
        return torch.rand(n, generator=generator, dtype=torch.float64)

    def randn(n: int) -> Tensor:
        return torch.randn(n, generator=generator, dtype=torch.float64)

    responses = []
    for _ in range(N * G):
        length = int(torch.randint(1, 7, (), generator=generator))
        behaviour = -2 * rand(length)
        policy = (behaviour + drift * randn(length)).requires_grad_()
        responses.append(Response(policy, behaviour, 2 * rand(length), randn(1).item(), randn(length)))
    responses[3].advantage = 0.0
    return [responses[q * G : (q + 1) * G] for q in range(N)]


def flat(groups: list[Group]) -> Group:
    return [response for group in groups for response in group]


def measured(groups: list[Group]) -> ResponseTokens:
    """What the step hands to a loss."""
    responses = flat(groups)
    lengths = torch.tensor([len(response) for response in responses])
    return ResponseTokens(
        logs=torch.cat([(response.policy - response.behaviour).detach() for response in responses]),
        energy=torch.cat([response.energy for response in responses]),
        sequences=torch.arange(len(responses)).repeat_interleave(lengths),
        behaviour=torch.stack([response.behaviour.sum() for response in responses]),
        lengths=lengths,
        group_size=G,
    )


def response_advantages(groups: list[Group]) -> Tensor:
    return torch.tensor([response.advantage for response in flat(groups)], dtype=torch.float64)


def token_advantages(groups: list[Group]) -> Tensor:
    return torch.cat([response.token_advantages for response in flat(groups)])


def loss(key):
    return instantiate(OmegaConf.load(ROOT / "conf" / "loss" / f"{key[0]}.yaml"), **dict(key[1:]))


def coefficients(chosen, groups: list[Group], advantages: Tensor) -> Tensor:
    """``A_i z_i f_it / G`` of every token, float64 [n]."""
    ratios = measured(groups)
    lengths = chosen.length_factors(ratios.lengths.view(-1, G)).flatten()
    factors = chosen.factors(ratios, advantages)
    return ratios.spread(advantages) * ratios.spread(lengths) * ratios.spread(factors) / G


def gradients(groups: list[Group]) -> Tensor:
    return torch.cat([response.policy.grad for response in flat(groups)])


# --- plain loops: f of token t of response i, from its group and the advantage that the token has -------------------


def product(group: Group, i: int) -> float:
    return math.exp(sum(group[i].policy.tolist()) - sum(group[i].behaviour.tolist()))


def token(group: Group, i: int, t: int) -> float:
    return math.exp(group[i].policy[t].item() - group[i].behaviour[t].item())


def likelihood(logs: Tensor) -> float:
    """Geometric mean of the tokens' probabilities."""
    return math.exp(sum(logs.tolist()) / len(logs))


def unless_clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    if (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 1 - low):
        return 0.0
    return ratio


def within(ratio: float, low: float, high: float) -> float:
    return ratio if low <= ratio <= high else 0.0


def share(ratios: list[float]) -> float:
    """Effective sample size, over the number of ratios."""
    return sum(ratios) ** 2 / len(ratios) / sum(ratio * ratio for ratio in ratios)


def ppo_loop(low, high):
    return lambda group, i, t, advantage: unless_clipped(token(group, i, t), advantage, low, high)


def gspo_loop(low, high):
    def factor(group, i, t, advantage):
        return unless_clipped(likelihood(group[i].policy) / likelihood(group[i].behaviour), advantage, low, high)

    return factor


def gepo_loop(clip):
    def factor(group, i, t, advantage):
        others = [likelihood(response.behaviour) for response in group]
        expectation = sum(m * m for m in others) / sum(others)
        return unless_clipped(likelihood(group[i].policy) / expectation, advantage, clip, clip)

    return factor


def capo_loop(step=1e-2, policy_shift=1e-4, objective_shift=1e-2, low=0.2, high=0.2):
    def factor(group, i, t, advantage):
        x = step * abs(advantage) * group[i].energy[t].item()
        if x * x / 2 >= policy_shift or abs(abs(advantage) * x + advantage * x * x / 2) >= objective_shift:
            return 0.0
        return unless_clipped(token(group, i, t), advantage, low, high)

    return factor


def per_token(groups: list[Group], loop, advantages: Tensor) -> list[float]:
    """A loop over all tokens; ``advantages`` are those of the tokens."""
    places = [(group, i, t) for group in groups for i, response in enumerate(group) for t in range(len(response))]
    return [loop(*place, advantage) for place, advantage in zip(places, advantages.tolist(), strict=True)]


# --- published objectives: scalar functions of the policy's log-probabilities in a group ----------------------------


def over_responses(objective):
    """``(1/G) Σ_i``"""
    return lambda group: sum(objective(response) for response in group) / G


def over_tokens(objective):
    """``1/Σ_i |o_i| · Σ_i Σ_t``, of a function that gives a response's tokens."""
    return lambda group: sum(objective(response).sum() for response in group) / sum(map(len, group))


def in_sum(objective):
    """``Σ_t``"""
    return lambda response: objective(response).sum()


def in_mean(objective):
    """``1/|o_i| Σ_t``"""
    return lambda response: objective(response).mean()


def surrogate(ratio, advantage, low, high):
    return torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def sequence_ratio(response):
    return (response.policy - response.behaviour).sum().exp()


def mean_ratio(response):
    return (response.policy - response.behaviour).mean().exp()


def reinforce(weight):
    """``sg[w] A log π``, of a function that gives the weights of tokens or of a response."""
    return lambda response: weight(response).detach() * response.advantage * response.policy


def ppo(low, high):
    return lambda response: surrogate(response.ratios, response.advantage, low, high)


def gspo(low, high):
    return lambda response: surrogate(mean_ratio(response), response.advantage, low, high)


def luspo(low, high):
    return lambda response: len(response) * gspo(low, high)(response)


def cispo(low, high):
    return reinforce(lambda response: response.ratios.clamp(1 - low, 1 + high))


def band(low, high, ratio=lambda response: response.ratios):
    return lambda response: ratio(response) * ((ratio(response) >= low) & (ratio(response) <= high))


def effective(ratios):
    return (ratios.mean().square() / ratios.square().mean()).item()


def ess_of_responses(group):
    most = effective(torch.stack([sequence_ratio(response) for response in group]))
    return over_responses(in_sum(reinforce(lambda response: sequence_ratio(response).clamp(max=most))))(group)


def gepo(clip, times=lambda response: 1):
    def objective(group):
        sampler = torch.stack([response.behaviour.mean().exp() for response in group])
        learner = torch.stack([response.policy.mean().exp() for response in group])
        weights = learner / (sampler / sampler.sum() * sampler).sum()
        advantages = torch.tensor([response.advantage for response in group], dtype=torch.float64)
        counts = torch.tensor([times(response) for response in group])
        return (counts * surrogate(weights, advantages, clip, clip)).mean()

    return objective


def capo(step=1e-2, policy_shift=1e-4, objective_shift=1e-2, low=0.2, high=0.2):
    def objective(response):
        directional = response.advantage * response.energy  # over ‖h‖², which the step contains
        policy = 0.5 * step**2 * directional**2
        shift = step * response.advantage * directional + 0.5 * step**2 * response.advantage * directional**2
        kept = (policy < policy_shift) & (shift.abs() < objective_shift)
        return kept * surrogate(response.ratios, response.advantage, low, high)

    return objective


#: name and settings → the loop for f, and the objective of a group
CASES = {
    ("policy_gradient",): (
        lambda group, i, t, a: product(group, i),
        over_responses(lambda response: sequence_ratio(response) * response.advantage),
    ),
    ("policy_gradient", ("truncate", 1.2)): (
        lambda group, i, t, a: min(product(group, i), 1.2),
        over_responses(in_sum(reinforce(lambda response: sequence_ratio(response).clamp(max=1.2)))),
    ),
    ("policy_gradient", ("ratio", "token")): (
        lambda group, i, t, a: token(group, i, t),
        over_responses(in_sum(lambda response: response.ratios * response.advantage)),
    ),
    ("policy_gradient", ("ratio", "token"), ("truncate", 1.2)): (
        lambda group, i, t, a: min(token(group, i, t), 1.2),
        over_responses(in_sum(reinforce(lambda response: response.ratios.clamp(max=1.2)))),
    ),
    ("policy_gradient", ("ratio", "none")): (
        lambda group, i, t, a: 1.0,
        over_responses(in_sum(lambda response: response.advantage * response.policy)),
    ),
    ("policy_gradient", ("ratio", "none"), ("normalise", "response")): (
        lambda group, i, t, a: 1.0,
        over_responses(in_mean(lambda response: response.advantage * response.policy)),
    ),
    ("policy_gradient", ("ratio", "none"), ("normalise", "group")): (
        lambda group, i, t, a: 1.0,
        over_tokens(lambda response: response.advantage * response.policy),
    ),
    ("ppo_clip",): (ppo_loop(0.2, 0.28), over_responses(in_sum(ppo(0.2, 0.28)))),
    # GRPO
    ("ppo_clip", ("clip_high", 0.2), ("normalise", "response")): (
        ppo_loop(0.2, 0.2),
        over_responses(in_mean(ppo(0.2, 0.2))),
    ),
    # DAPO
    ("ppo_clip", ("clip_low", 0.1), ("normalise", "group")): (ppo_loop(0.1, 0.28), over_tokens(ppo(0.1, 0.28))),
    ("gspo",): (gspo_loop(3e-4, 4e-4), over_responses(gspo(3e-4, 4e-4))),
    ("gspo", ("clip_low", 0.1), ("clip_high", 0.15)): (gspo_loop(0.1, 0.15), over_responses(gspo(0.1, 0.15))),
    ("gspo", ("normalise", "none")): (gspo_loop(3e-4, 4e-4), over_responses(luspo(3e-4, 4e-4))),
    ("cispo",): (
        lambda group, i, t, a: min(token(group, i, t), 5.0),
        over_responses(in_sum(cispo(math.inf, 4.0))),
    ),
    ("cispo", ("clip_low", 0.1), ("clip_high", 0.2), ("normalise", "group")): (
        lambda group, i, t, a: min(max(token(group, i, t), 0.9), 1.2),
        over_tokens(cispo(0.1, 0.2)),
    ),
    ("band",): (
        lambda group, i, t, a: within(token(group, i, t), 0.5, 5.0),
        over_responses(in_sum(reinforce(band(0.5, 5.0)))),
    ),
    ("band", ("low", 0.9), ("high", 1.2), ("normalise", "group")): (
        lambda group, i, t, a: within(token(group, i, t), 0.9, 1.2),
        over_tokens(reinforce(band(0.9, 1.2))),
    ),
    ("band", ("ratio", "sequence"), ("high", 1.2)): (
        lambda group, i, t, a: within(product(group, i), 0.5, 1.2),
        over_responses(in_sum(reinforce(band(0.5, 1.2, sequence_ratio)))),
    ),
    ("ess",): (
        lambda group, i, t, a: min(product(group, i), share([product(group, j) for j in range(G)])),
        ess_of_responses,
    ),
    ("ess", ("ratio", "token"), ("normalise", "response")): (
        lambda group, i, t, a: min(token(group, i, t), share([token(group, i, s) for s in range(len(group[i]))])),
        over_responses(in_mean(reinforce(lambda response: response.ratios.clamp(max=effective(response.ratios))))),
    ),
    ("gepo",): (gepo_loop(math.inf), gepo(math.inf)),
    ("gepo", ("clip", 0.2)): (gepo_loop(0.2), gepo(0.2)),
    ("gepo", ("normalise", "none")): (gepo_loop(math.inf), gepo(math.inf, times=len)),
    ("capo",): (capo_loop(), over_responses(in_sum(capo()))),
    ("capo", ("policy_shift", 1e-5), ("normalise", "response")): (
        capo_loop(policy_shift=1e-5),
        over_responses(in_mean(capo(policy_shift=1e-5))),
    ),
    ("capo", ("step", 2e-2), ("objective_shift", 5e-3), ("clip_low", 0.1), ("clip_high", 0.3)): (
        capo_loop(2e-2, 1e-4, 5e-3, 0.1, 0.3),
        over_responses(in_sum(capo(2e-2, 1e-4, 5e-3, 0.1, 0.3))),
    ),
    # steps so long that unlearning a token would make the objective worse
    ("capo", ("step", 5.0), ("policy_shift", 1e3), ("objective_shift", 0.5)): (
        capo_loop(5.0, 1e3, 0.5),
        over_responses(in_sum(capo(5.0, 1e3, 0.5))),
    ),
}


def name_of(key) -> str:
    return "-".join(f"{part[0]}={part[1]}" if isinstance(part, tuple) else part for part in key)


every_case = pytest.mark.parametrize("key", CASES, ids=name_of)


@every_case
def test_against_a_plain_loop(key):
    groups, chosen = draw(), loss(key)
    ratios, advantages = measured(groups), response_advantages(groups)
    factors = chosen.factors(ratios, advantages)
    assert factors.dtype == torch.float64
    assert factors.shape == (ratios.logs if chosen.per_token else ratios.behaviour).shape
    expected = per_token(groups, CASES[key][0], ratios.spread(advantages))
    assert ratios.spread(factors).tolist() == pytest.approx(expected, rel=1e-12)


@every_case
def test_against_autograd_through_the_published_objective(key):
    groups = draw()
    sum(CASES[key][1](group) for group in groups).backward()
    found = coefficients(loss(key), groups, response_advantages(groups))
    torch.testing.assert_close(found, gradients(groups), rtol=1e-12, atol=0)


def test_every_loss_and_every_setting_has_a_test():
    files = {path.stem: OmegaConf.load(path) for path in (ROOT / "conf" / "loss").glob("*.yaml")}
    assert set(files) == {key[0] for key in CASES}
    for name, settings in files.items():
        tested = {setting for key in CASES if key[0] == name for setting, _ in key[1:]}
        assert tested == set(settings) - {"_target_"}, name
    for setting, options in (("ratio", Ratio), ("normalise", Normalise)):
        assert {{**files[key[0]], **dict(key[1:])}.get(setting) for key in CASES} >= set(get_args(options))


@pytest.mark.parametrize("name", sorted({key[0] for key in CASES}))
def test_defaults_are_those_of_the_configuration(name):
    chosen = loss((name,))
    required = {"step": chosen.step} if name == "capo" else {}
    assert vars(type(chosen)(**required)) == vars(chosen)


# --- what they have in common ---------------------------------------------------------------------------------------


@every_case
def test_on_policy_every_loss_is_the_plain_policy_gradient(key):
    """GEPO if its responses are equally likely, CAPO if its step is too small to mask anything."""
    groups = draw(drift=0.0)
    chosen, plain = loss(key), loss(("policy_gradient", ("ratio", "none")))
    plain.normalise = chosen.normalise
    if key[0] == "gepo":
        for response in flat(groups):
            response.policy = response.behaviour = torch.full_like(response.behaviour, -0.7)
    if key[0] == "capo":
        chosen.step = 1e-9
    advantages = response_advantages(groups)
    expected = coefficients(plain, groups, advantages)
    torch.testing.assert_close(coefficients(chosen, groups, advantages), expected, rtol=1e-12, atol=0)
    assert (expected != 0).sum() > N * G


@every_case
def test_without_advantages_nothing_is_clipped_that_only_one_sign_would_have_clipped(key):
    groups, chosen = draw(), loss(key)
    ratios = measured(groups)
    unsigned = chosen.factors(ratios)
    assert (unsigned > 0).all() or key[0] == "band"  # which masks whatever the sign
    assert torch.equal(unsigned, chosen.factors(ratios, torch.zeros(N * G)))
    signed = chosen.factors(ratios, response_advantages(groups))
    assert torch.equal(signed, unsigned) != chosen.signed


CLIPPED = {
    "ppo_clip": {},
    "gspo": {"clip_low": 0.1, "clip_high": 0.15},
    "gepo": {"clip": 0.2},
    "capo": {"step": 1e-9},  # nothing is masked
}


@pytest.mark.parametrize("name", CLIPPED)
def test_each_sign_is_clipped_on_its_own_side_alone(name):
    logs = torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5, -0.5], dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.long)
    ratios = ResponseTokens(logs, torch.ones(6).double(), torch.arange(6), -ones.double(), ones, 6)
    factors = loss((name, *CLIPPED[name].items())).factors(ratios, torch.tensor([1.0, -1.0, 0.0] * 2))
    up, down = math.exp(0.5), math.exp(-0.5)
    assert factors.tolist() == pytest.approx([0, up, up, down, 0, down], rel=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", ["ppo_clip", "cispo", "capo"])
def test_ratios_at_the_bounds_are_not_clipped(name, sign):
    logs = torch.tensor([1.25, 0.75], dtype=torch.float64).log()
    high, low = logs.exp().tolist()
    chosen = loss((name, ("clip_low", 1 - low), ("clip_high", high - 1)))
    ratios = ResponseTokens(logs, torch.zeros(2).double(), torch.zeros(2).long(), -torch.ones(1), torch.tensor([2]), 1)
    assert torch.equal(chosen.factors(ratios, torch.tensor([sign])), logs.exp())


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_ratios_at_the_bounds_of_a_band_count_and_beyond_them_nothing_does(ratio):
    """Not even where a cap would have been infinite."""
    logs = torch.tensor([0.5, 2.0, 0.49, 2.1, math.exp(700)], dtype=torch.float64).log()
    ones = torch.ones(5, dtype=torch.long)
    ratios = ResponseTokens(logs, torch.zeros(5).double(), torch.arange(5), -ones.double(), ones, 5)
    found = loss(("band", ("ratio", ratio), ("low", 0.5), ("high", 2.0))).factors(ratios)
    assert found.tolist() == pytest.approx([0.5, 2.0, 0, 0, 0], rel=1e-12)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_one_ratio_that_dwarfs_the_others_counts_as_one_in_so_many(ratio):
    """Although its square is no number."""
    logs = torch.tensor([math.log(0.1), 0.0, 0.0, 700.0], dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.long)
    lengths, sequences = (torch.tensor([4]), torch.zeros(4).long()) if ratio == "token" else (ones, torch.arange(4))
    ratios = ResponseTokens(logs, torch.zeros(4).double(), sequences, -lengths.double(), lengths, len(lengths))
    assert loss(("ess", ("ratio", ratio))).factors(ratios).tolist() == pytest.approx([0.1, 0.25, 0.25, 0.25], rel=1e-12)


@pytest.mark.parametrize("name", CLIPPED)
def test_advantages_of_tokens_clip_each_token_by_its_own(name):
    groups = draw()
    settings = {**CLIPPED[name], **({"step": 1e-2} if name == "capo" else {})}
    ratios, chosen = measured(groups), loss((name, *settings.items()))
    loops = {"ppo_clip": ppo_loop(0.2, 0.28), "gspo": gspo_loop(0.1, 0.15), "gepo": gepo_loop(0.2), "capo": capo_loop()}
    factors = chosen.factors(ratios, token_advantages(groups))
    expected = per_token(groups, loops[name], token_advantages(groups))
    assert factors.tolist() == pytest.approx(expected, rel=1e-12)
    assert 0 < (factors == 0).sum() < len(factors)
    own = response_advantages(groups)
    assert torch.equal(chosen.factors(ratios, ratios.spread(own)), ratios.spread(chosen.factors(ratios, own)))


def test_lengths():
    lengths = torch.tensor([[1, 2, 3], [4, 4, 4]])

    def factors(*settings):
        return loss(("policy_gradient", *settings)).length_factors(lengths).tolist()

    assert factors() == [[1, 1, 1], [1, 1, 1]]
    assert factors(("normalise", "response")) == [[1, 1 / 2, 1 / 3], [1 / 4] * 3]
    assert factors(("normalise", "group")) == [[1 / 2] * 3, [1 / 4] * 3]


@pytest.mark.parametrize(("normalise", "expected"), [("none", [12, 5]), ("response", [3, 5 / 16])])
def test_a_baseline_is_weighted_by_the_square_of_what_multiplies_the_score(normalise, expected):
    """``ρ = 2`` over two tokens, of norm² 3; ``ρ = 1`` over four, of norm² 5."""
    logs = torch.tensor([0.5, 0.5, 0, 0, 0, 0], dtype=torch.float64) * math.log(2)
    sequences, behaviour = torch.tensor([0, 0, 1, 1, 1, 1]), torch.zeros(2, dtype=torch.float64)
    tokens = ResponseTokens(logs, torch.ones(6, dtype=torch.float64), sequences, behaviour, torch.tensor([2, 4]), 2)
    chosen = loss(("policy_gradient", ("ratio", "sequence"), ("normalise", normalise)))
    assert chosen.reward_weights(tokens, torch.tensor([3.0, 5.0])).tolist() == pytest.approx(expected)


# --- what is special to some ----------------------------------------------------------------------------------------


def test_gspo_with_advantages_of_tokens_is_gspo_token():
    """``sg[s_i] π_t / sg[π_t]`` in the place of ``s_i`` (arXiv 2507.18071, Section 4.3)."""
    groups = draw()
    for response in flat(groups):
        ratios = mean_ratio(response).detach() * (response.policy - response.policy.detach()).exp()
        (surrogate(ratios, response.token_advantages, 0.1, 0.15).mean() / G).backward()
    chosen = loss(("gspo", *CLIPPED["gspo"].items()))
    found = coefficients(chosen, groups, token_advantages(groups))
    torch.testing.assert_close(found, gradients(groups), rtol=1e-12, atol=0)


def test_cispo_without_a_lower_bound_is_the_truncated_policy_gradient():
    ratios = measured(draw(drift=2.0))
    factors = loss(("cispo",)).factors(ratios)
    truncated = loss(("policy_gradient", ("ratio", "token"), ("truncate", 5.0)))
    assert torch.equal(factors, truncated.factors(ratios))
    assert (factors == 5).any()


def test_gepo_weighs_likelier_responses_up_even_on_policy():
    groups = draw(drift=0.0)
    factors = loss(("gepo",)).factors(measured(groups)).view(N, G)
    likely = torch.tensor([[likelihood(response.behaviour) for response in group] for group in groups]).double()
    assert torch.equal(factors.argsort(1), likely.argsort(1))
    torch.testing.assert_close((factors * likely).sum(1) / likely.sum(1), torch.ones(N).double(), rtol=1e-6, atol=0)
    assert (factors.mean(1) < 0.999).all()


def test_gepo_survives_what_makes_ratios_explode():
    """A response that the policy finds e^1000 times likelier than the behaviour policy did."""
    ones = torch.ones(2, dtype=torch.long)
    logs, behaviour = torch.tensor([1000.0, 0.0]).double(), torch.tensor([-1001.0, -1.0]).double()
    ratios = ResponseTokens(logs, ones.double(), torch.arange(2), behaviour, ones, 2)
    assert loss(("gepo",)).factors(ratios).tolist() == pytest.approx([1, 1], rel=1e-12)
    assert loss(("policy_gradient",)).factors(ratios).tolist() == [math.inf, 1]
    assert loss(("policy_gradient", ("truncate", 2.0))).factors(ratios).tolist() == [2, 1]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_capo_predicts_what_a_step_of_the_output_layer_shifts(temperature):
    """Against the layer itself: the policy's shift exactly, the objective's but for the curvature of ``log π``."""
    torch.manual_seed(0)
    n, vocabulary, width, learning_rate = 40, 7, 5, 0.02
    layer = torch.randn(vocabulary, width, dtype=torch.float64)
    hidden = 3 * torch.nn.functional.normalize(torch.randn(n, width, dtype=torch.float64))
    advantages, tokens = torch.randn(n, dtype=torch.float64), torch.randint(vocabulary, (n,)).tolist()
    energy, policy, outer, objective = [], [], [], []
    for h, drawn, advantage in zip(hidden, tokens, advantages, strict=True):
        logits = (layer @ h / temperature).requires_grad_()
        (by_logits,) = torch.autograd.grad(logits.log_softmax(-1)[drawn], logits)
        probabilities = logits.detach().softmax(-1)
        energy.append(1 - 2 * probabilities[drawn] + probabilities.square().sum())
        torch.testing.assert_close(by_logits.square().sum(), energy[-1], rtol=1e-12, atol=0)

        def improvement(weight, h=h, drawn=drawn, advantage=advantage):
            logprob = (weight @ h / temperature).log_softmax(-1)[drawn]
            return advantage * (logprob - logprob.detach()).exp()

        gradient = torch.autograd.functional.jacobian(improvement, layer)
        change = learning_rate * gradient
        curvature = torch.autograd.functional.hvp(improvement, layer, change)[1]
        first, along = (gradient * change).sum(), (gradient * change).sum() / advantage
        policy.append(along.square() / 2)
        outer.append(first + advantage * along.square() / 2)
        objective.append(first + (curvature * change).sum() / 2)
    step = learning_rate * 9 / temperature**2
    none = torch.zeros(n, dtype=torch.float64)
    ratios = ResponseTokens(none, torch.stack(energy), none.long(), none[:1], torch.tensor([n]), 1)
    found_objective, found_policy = loss(("capo", ("step", step))).shifts(ratios, advantages)
    torch.testing.assert_close(found_policy, torch.stack(policy), rtol=1e-10, atol=0)
    torch.testing.assert_close(found_objective, torch.stack(outer), rtol=1e-10, atol=0)
    left_out = (found_objective - torch.stack(objective)).abs()
    bound = step * advantages.abs() / 4 * step * advantages.square() * ratios.energy
    assert (left_out <= bound).all()
    assert (left_out > bound / 10).any()


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("policy_gradient", "ratio", "group"),
        ("policy_gradient", "normalise", "batch"),
        ("policy_gradient", "truncate", 0.5),
        ("ppo_clip", "clip_low", -0.1),
        ("gspo", "clip_high", -0.1),
        ("cispo", "clip_high", math.nan),
        ("band", "low", 1.1),
        ("band", "high", 0.9),
        ("gepo", "clip", -0.1),
        ("capo", "clip_low", -0.1),
        ("capo", "step", 0.0),
        ("capo", "policy_shift", -1e-4),
        ("capo", "objective_shift", 0.0),
    ],
)
def test_a_setting_that_cannot_work_is_named(name, setting, value):
    with pytest.raises(Exception, match=rf"loss\.{setting}: ") as caught:
        loss((name, (setting, value)))
    assert isinstance(caught.value.__cause__, SettingError)


def test_a_cap_on_no_ratio_is_refused():
    with pytest.raises(Exception, match=r"loss\.truncate: there is no ratio"):
        loss(("policy_gradient", ("ratio", "none"), ("truncate", 2.0)))
