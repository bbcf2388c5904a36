import contextlib
import gc
import itertools
import weakref

import pytest
import torch
from conftest import combine, log_gradients, make_rollouts, square_norm, tiny_model
from torch import nn

from oblr.baselines.leave_one_out import leave_one_out_means
from oblr.batch.packing import pack
from oblr.batch.types import Rollout
from oblr.errors import SettingError
from oblr.gradnorm import head, measure
from oblr.gradnorm.measure import GradNorms
from oblr.policy.loading import checkpoint_blocks
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem


@pytest.fixture(params=["whole", "sliced"], autouse=True)
def head_slices(request, monkeypatch):
    """The head at once, and a few rows of the vocabulary at a time."""
    if request.param == "sliced":
        monkeypatch.setattr(head, "SLICE", 1000)


LENGTHS = (1, 5, 17, 3, 40, 8, 2, 1)
COEFFICIENTS = torch.tensor([0.5, -1.0, 2.0, 0.1, -0.3, 0.7, 1.1, -0.2])
ALL_TIERS = ["exact", "sketch", "logit", "length", "uniform"]


def run(gradnorm, lm, rollouts, step=0, temperature=1.0):
    """(weights, gradient, norms of groups of four) of one micro-batch."""
    lm.zero_grad()
    model = PolicyModel(lm, temperature)
    with gradnorm.measure(model, lm, [pack(rollouts)], 4, step) as measured:
        groups = measured.backward(COEFFICIENTS[: len(rollouts)])
    return measured.square_norms, {name: p.grad.clone() for name, p in lm.named_parameters() if p.requires_grad}, groups


@pytest.mark.parametrize("tier", ALL_TIERS)
@pytest.mark.parametrize("passes", ["one", "two"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_gradient_and_the_norms_of_groups_are_exact_in_every_tier(tier, passes, tied):
    lm, rollouts = tiny_model(tied), make_rollouts(LENGTHS)
    oracle = log_gradients(lm, rollouts, 1.0)
    expected = combine(oracle, COEFFICIENTS.tolist())
    parts = [combine(oracle[s], COEFFICIENTS[s].tolist()) for s in (slice(0, 4), slice(4, 8))]
    weights, gradient, groups = run(GradNorms(tier, passes), lm, rollouts)
    difference = square_norm({name: gradient[name].double() - expected[name] for name in expected})
    assert (difference / square_norm(expected)) ** 0.5 < 1e-5
    torch.testing.assert_close(groups, torch.tensor([square_norm(g) for g in parts]).double(), rtol=1e-5, atol=0)
    if tier == "exact":
        torch.testing.assert_close(weights, torch.tensor([square_norm(g) for g in oracle]).double(), rtol=1e-5, atol=0)


def test_proxies_against_plain_loops():
    lm, rollouts = tiny_model(tied=True), make_rollouts(LENGTHS)
    for i, rollout in enumerate(rollouts):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion.token_ids])
        with torch.no_grad():
            probabilities = lm(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].softmax(-1)
        logit = sum(
            (nn.functional.one_hot(torch.tensor(token), len(p)) - p).square().sum().item()
            for token, p in zip(rollout.completion.token_ids, probabilities, strict=True)
        )
        weights = {tier: run(GradNorms(tier), lm, rollouts)[0][i].item() for tier in ("logit", "length", "uniform")}
        assert weights["logit"] == pytest.approx(logit, rel=1e-5)
        assert weights["length"] == len(rollout.completion.token_ids)
        assert weights["uniform"] == 1


def test_the_sketch_is_unbiased_and_repeats_itself():
    lm, rollouts = tiny_model(tied=True), make_rollouts(LENGTHS)
    exact = run(GradNorms("exact"), lm, rollouts)[0]
    sketch = GradNorms("sketch", "two", probes=2)
    draws = torch.stack([run(sketch, lm, rollouts, step)[0] for step in range(100)])
    error = (draws.mean(0) - exact) / (draws.std(0) / len(draws) ** 0.5)
    assert error.abs().max() < 4
    assert (draws.std(0) / exact).max() < 0.5
    assert torch.equal(run(sketch, lm, rollouts, 7)[0], draws[7])
    assert not torch.equal(run(GradNorms("sketch", "two", probes=2, seed=1), lm, rollouts, 7)[0], draws[7])


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_the_estimator_is_exactly_unbiased_in_every_tier(tier):
    """All triples of one-token responses, weighted by their probability, average to the gradient of E[R]."""
    lm, group_size, choices = tiny_model(tied=True), 3, 6
    responses = [
        Rollout(Problem("", "", ""), [1, 2, 3], Completion([token], [0.0], True), "", 0.0) for token in range(choices)
    ]
    rewards = torch.tensor([1.0, 0.0, 0.3, 0.0, 0.8, 0.1], dtype=torch.float64)
    logprobs = PolicyModel(lm, 1.0)(pack(responses)).logprobs.detach().double()
    probabilities = logprobs.softmax(0)  # a policy over these responses alone
    gradients = torch.stack(
        [torch.cat([g.flatten() for g in gradient.values()]) for gradient in log_gradients(lm, responses, 1.0)]
    ).double()
    gradients = gradients - probabilities @ gradients
    with GradNorms(tier, "two").measure(PolicyModel(lm, 1.0), lm, [pack(responses)], choices) as measured:
        weights = measured.square_norms

    expected = (probabilities * rewards) @ gradients
    average, pooled = torch.zeros_like(expected), torch.zeros_like(expected)
    for triple in itertools.product(range(choices), repeat=group_size):
        index = torch.tensor(triple)
        baseline = leave_one_out_means(rewards[index][None], weights[index][None])[0]
        own_included = (weights[index] * rewards[index]).sum() / weights[index].sum()
        chance = probabilities[index].prod() / group_size
        average += chance * ((rewards[index] - baseline) @ gradients[index])
        pooled += chance * ((rewards[index] - own_included) @ gradients[index])
    assert (average - expected).norm() / expected.norm() < 1e-10
    assert (pooled - expected).norm() / expected.norm() > 0.05


@pytest.mark.parametrize("tier", ALL_TIERS)
@pytest.mark.parametrize("passes", ["one", "two"])
@pytest.mark.parametrize("used", [True, False])
def test_nothing_is_left_in_memory(monkeypatch, tier, passes, used):
    """Not even for the garbage collector, which does not see through autograd's graph."""
    lm, packed, tapes, original = tiny_model(tied=True), pack(make_rollouts(LENGTHS)), [], measure.capture

    @contextlib.contextmanager
    def watched(*args):
        with original(*args) as tape:
            tapes.append(weakref.ref(tape))
            yield tape

    monkeypatch.setattr(measure, "capture", watched)
    gc.disable()
    try:
        with GradNorms(tier, passes).measure(PolicyModel(lm, 1.0), lm, [packed], 4) as measured:
            if used:
                measured.backward(COEFFICIENTS)
        del measured
        assert tapes
        assert not any(tape() for tape in tapes)
    finally:
        gc.enable()


@pytest.mark.parametrize("passes", ["one", "two"])
@pytest.mark.parametrize(("tied", "every"), [(True, 1), (False, 1), (True, 2)])
def test_activation_checkpointing(passes, tied, every):
    lm, rollouts = tiny_model(tied), make_rollouts(LENGTHS)
    expected = run(GradNorms("exact", passes), lm, rollouts)
    checkpoint_blocks(lm, every)
    assert [block.gradient_checkpointing for block in lm.model.layers] == [True, every == 1]
    weights, gradient, groups = run(GradNorms("exact", passes), lm, rollouts)
    torch.testing.assert_close(weights, expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(groups, expected[2], rtol=1e-6, atol=0)
    for name in gradient:
        torch.testing.assert_close(gradient[name], expected[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_bfloat16_norms_are_right_to_one_percent(tied):
    lm, rollouts = tiny_model(tied).bfloat16(), make_rollouts(LENGTHS)
    oracle = [square_norm(g) for g in log_gradients(lm, rollouts, 1.0)]
    weights, _, _ = run(GradNorms("exact", "one"), lm, rollouts)
    torch.testing.assert_close(weights, torch.tensor(oracle).double(), rtol=1e-2, atol=0)


class LowRank(nn.Module):
    """A frozen layer with a trainable low-rank detour."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 3, bias=False)
        self.up = nn.Linear(3, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("passes", ["one", "two"])
def test_adapters_on_a_frozen_base(passes):
    lm, rollouts = tiny_model(tied=True), make_rollouts(LENGTHS)
    lm.requires_grad_(False)
    for layer in lm.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.mlp.down_proj = LowRank(layer.mlp.down_proj)
    oracle = log_gradients(lm, rollouts, 1.0)
    weights, gradient, _ = run(GradNorms("exact", passes), lm, rollouts)
    torch.testing.assert_close(weights, torch.tensor([square_norm(g) for g in oracle]).double(), rtol=1e-5, atol=0)
    assert gradient.keys() == oracle[0].keys()
    assert all(p.grad is None for p in lm.parameters() if not p.requires_grad)


@pytest.mark.parametrize(
    ("settings", "name"), [({"tier": "best"}, "tier"), ({"passes": "three"}, "passes"), ({"probes": 0}, "probes")]
)
def test_bad_settings(settings, name):
    with pytest.raises(SettingError, match=rf"^gradnorm\.{name}: "):
        GradNorms(**settings)


@pytest.mark.parametrize("passes", ["one", "two"])
@pytest.mark.parametrize("tied", [True, False])
def test_autocast_computes_in_bfloat16_on_float32_weights(passes, tied):
    lm, rollouts = tiny_model(tied), make_rollouts(LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        oracle = log_gradients(lm, rollouts, 1.0)
        weights, gradient, groups = run(GradNorms("exact", passes), lm, rollouts)
    full_precision = run(GradNorms("exact", passes), lm, rollouts)[0]
    expected = combine(oracle, COEFFICIENTS.tolist())
    parts = [combine(oracle[s], COEFFICIENTS[s].tolist()) for s in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(weights, torch.tensor([square_norm(g) for g in oracle]).double(), rtol=1e-2, atol=0)
    torch.testing.assert_close(groups, torch.tensor([square_norm(g) for g in parts]).double(), rtol=1e-2, atol=0)
    difference = square_norm({name: gradient[name].double() - expected[name] for name in expected})
    assert (difference / square_norm(expected)) ** 0.5 < 1e-2
    assert all(g.dtype == torch.float32 for g in gradient.values())
    assert (weights - full_precision).abs().max() > 1e-4 * full_precision.max()  # it was bfloat16 indeed
