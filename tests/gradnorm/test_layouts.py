"""Whatever the model's shape, the lengths and the layout: norms and gradients are those of one backward a sequence."""

from unittest import mock

import pytest
import torch
from conftest import FAMILIES, VOCAB, adapt, combine, log_gradients, make_rollouts, square_norm, tiny_model
from hypothesis import given, note, settings
from hypothesis import strategies as st

from oblr.batch.packing import pack
from oblr.batch.segments import cut
from oblr.gradnorm import head
from oblr.gradnorm.measure import GradNorms
from oblr.policy.model import PolicyModel


@st.composite
def models(draw):
    heads = draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]))
    lm = tiny_model(
        tied=draw(st.booleans()),
        family=draw(st.sampled_from(sorted(FAMILIES))),
        vocab_size=draw(st.integers(VOCAB, 200)),
        hidden_size=12 * draw(st.integers(1, 5)),
        intermediate_size=draw(st.integers(8, 90)),
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=2 * draw(st.integers(2, 8)),
    )
    if draw(st.booleans()):
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = draw(st.sampled_from(["all", "some", "adapters"]))
    if trained == "some":
        frozen = draw(st.sampled_from(["embed", "norm", "mlp", "q_proj", "layers.0"]))
        for name, p in lm.named_parameters():
            p.requires_grad_(frozen not in name)
    if trained == "adapters":
        adapt(lm, draw(st.integers(1, 9)), draw(st.sampled_from(["all-linear", ["q_proj", "down_proj"]])))
    return lm


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lm=models(),
    group_size=st.integers(2, 5),
    n_groups=st.integers(1, 3),
    longest=st.sampled_from([1, 9, 60, 200]),
    passes=st.sampled_from(["one", "two"]),
    n_parts=st.integers(1, 5),
    logits_at_once=st.sampled_from([500, 2**26]),
    data=st.data(),
)
def test_every_layout_equals_the_oracle(lm, group_size, n_groups, longest, passes, n_parts, logits_at_once, data):
    count = group_size * n_groups
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=count, max_size=count))
    coefficients = torch.linspace(-1, 1.3, count)
    rollouts, model = make_rollouts(lengths), PolicyModel(lm, 0.8)
    oracle = log_gradients(lm, rollouts, 0.8)
    expected = combine(oracle, coefficients.tolist())
    groups = [
        combine(g, c.tolist()) for g, c in zip(cut(oracle, n_groups), coefficients.split(group_size), strict=True)
    ]

    # A group that is spread over several micro-batches comes alone.
    parts = [pack(part) for part in (cut(rollouts, min(n_parts, count)) if n_groups == 1 else [rollouts])]
    with (
        mock.patch.object(head, "SLICE", logits_at_once),
        GradNorms("exact", passes).measure(model, lm, parts, group_size) as measured,
    ):
        group_norms = measured.backward(coefficients)

    norms = torch.tensor([square_norm(g) for g in oracle]).double()
    found = {name: p.grad for name, p in lm.named_parameters() if p.requires_grad}
    error = square_norm({name: found[name].double() - expected[name] for name in expected}) / square_norm(expected)
    note(f"{lm.config}, {lengths}: gradient off by {error**0.5:.1e}")
    assert found.keys() == expected.keys()
    assert error**0.5 < 1e-5
    torch.testing.assert_close(measured.square_norms, norms, rtol=1e-5, atol=0)
    torch.testing.assert_close(group_norms, torch.tensor([square_norm(g) for g in groups]).double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_neither_order_nor_budget_nor_passes_change_gradient_or_norms_of_groups(tied):
    lm, group_size = tiny_model(tied), 4
    rollouts = make_rollouts([3, 9, 1, 4, 12, 2, 5, 5, 60, 6, 6, 6, 1, 30, 2, 8])
    coefficients, groups = torch.linspace(-1, 1.3, 16), torch.arange(16).view(4, 4)
    model = PolicyModel(lm, 1.0)

    def gradient_and_norms(passes, micro_batches):
        """Each micro-batch is some groups' sequences and the number of parts that they are cut into."""
        lm.zero_grad()
        norms = torch.zeros(4, dtype=torch.float64)
        for members, n_parts in micro_batches:
            parts = [pack([rollouts[i] for i in part]) for part in cut(members, n_parts)]
            with GradNorms("exact", passes).measure(model, lm, parts, group_size) as measured:
                norms[[i // group_size for i in members[::group_size]]] = measured.backward(coefficients[members])
        return torch.cat([p.grad.flatten().double() for p in lm.parameters()]), norms

    gradient, norms = gradient_and_norms("two", [(list(range(16)), 1)])
    for passes in ("one", "two"):
        for micro_batches in (
            [(groups.flip(0).flatten().tolist(), 1)],
            [(groups.flip(1).flatten().tolist(), 1)],
            [(group, 1) for group in groups.tolist()],
            [(group, 3) for group in groups.flip(0, 1).tolist()],
        ):
            found, found_norms = gradient_and_norms(passes, micro_batches)
            assert (found - gradient).norm() / gradient.norm() < 1e-6
            torch.testing.assert_close(found_norms, norms, rtol=1e-6, atol=0)
