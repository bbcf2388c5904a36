import pytest
import torch
from conftest import combine, log_gradients, make_rollouts, square_norm, tiny_model
from torch import nn

from oblr.batch.packing import pack
from oblr.errors import SettingError
from oblr.gradnorm import head
from oblr.gradnorm.capture import capture
from oblr.policy.model import PolicyModel


@pytest.fixture(params=["whole", "sliced"], autouse=True)
def head_slices(request, monkeypatch):
    """The head at once, and a few rows of the vocabulary at a time."""
    if request.param == "sliced":
        monkeypatch.setattr(head, "SLICE", 1000)


LENGTHS = (1, 5, 17, 3, 40, 8, 2, 1)
TEMPERATURE = 0.7


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "qwen2"])  # qwen2 has biases, qwen3 has q/k norms
@pytest.mark.parametrize("packed_together", [True, False])
def test_square_norms_equal_the_oracle(tied, family, packed_together):
    lm, rollouts = tiny_model(tied, family), make_rollouts(LENGTHS)
    expected = torch.tensor([square_norm(g) for g in log_gradients(lm, rollouts, TEMPERATURE)])
    batches = [rollouts] if packed_together else [[r] for r in rollouts]
    norms = []
    for batch in batches:
        packed = pack(batch)
        with capture(lm, packed.segments, packed.target_segments) as tape:
            PolicyModel(lm, TEMPERATURE)(packed)[0].sum().backward()
        norms.append(tape.square_norms)
    torch.testing.assert_close(torch.cat(norms).float(), expected, rtol=1e-5, atol=0)
    assert all(p.grad is None for p in lm.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_the_padding_token_inside_prompts_and_responses(tied):
    """Its embedding has no gradient, its row of the head has."""
    rollouts = make_rollouts(LENGTHS)
    rollouts[2].prompt_ids[0] = rollouts[4].completion.token_ids[1] = 3
    lm = tiny_model(tied, pad_token_id=3)
    assert lm.model.embed_tokens.padding_idx == 3
    oracle = log_gradients(lm, rollouts, TEMPERATURE)
    packed = pack(rollouts)
    with capture(lm, packed.segments, packed.target_segments) as tape:
        PolicyModel(lm, TEMPERATURE)(packed)[0].sum().backward()
    expected = torch.tensor([square_norm(g) for g in oracle])
    torch.testing.assert_close(tape.square_norms.float(), expected, rtol=1e-5, atol=0)
    with capture(lm, packed.segments, packed.target_segments, "weights"):
        PolicyModel(lm, TEMPERATURE)(packed)[0].sum().backward()
    summed = combine(oracle, [1.0] * len(rollouts))
    for name, p in lm.named_parameters():
        assert (p.grad.double() - summed[name]).norm() < 1e-5 * summed[name].norm(), name


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_weighted_pass_gives_autograds_gradient_and_the_norms_of_groups(tied, family):
    lm, rollouts = tiny_model(tied, family), make_rollouts(LENGTHS)
    coefficients = torch.tensor([0.5, -1.0, 2.0, 0.1, -0.3, 0.7, 1.1, -0.2])
    oracle = log_gradients(lm, rollouts, TEMPERATURE)
    expected = combine(oracle, coefficients.tolist())
    groups = [combine(oracle[s], coefficients[s].tolist()) for s in (slice(0, 4), slice(4, 8))]

    packed = pack(rollouts)
    segments, targets = packed.segments.merge(4), packed.target_segments.merge(4)
    with capture(lm, segments, targets, "weights") as tape:
        logprobs = PolicyModel(lm, TEMPERATURE)(packed).logprobs
        (coefficients[packed.target_segments.ids] * logprobs).sum().backward()

    for name, p in lm.named_parameters():
        error = (p.grad.double() - expected[name]).norm() / expected[name].norm()
        assert error < 1e-5, name
    torch.testing.assert_close(
        tape.square_norms, torch.tensor([square_norm(g) for g in groups]).double(), rtol=1e-5, atol=0
    )


def test_capture_leaves_the_forward_as_it_was():
    lm, packed = tiny_model(tied=True), pack(make_rollouts(LENGTHS))
    model = PolicyModel(lm, 1.0)
    plain = model(packed)[0]
    with capture(lm, packed.segments, packed.target_segments):
        captured = model(packed)[0]
    torch.testing.assert_close(captured, plain, rtol=0, atol=1e-6)
    assert torch.equal(model(packed)[0], plain)


def test_frozen_parameters_are_left_out():
    lm, rollouts = tiny_model(tied=False), make_rollouts(LENGTHS)
    for name, p in lm.named_parameters():
        p.requires_grad_("q_proj" in name or "norm" in name)
    expected = torch.tensor([square_norm(g) for g in log_gradients(lm, rollouts, 1.0)])
    packed = pack(rollouts)
    with capture(lm, packed.segments, packed.target_segments) as tape:
        PolicyModel(lm, 1.0)(packed)[0].sum().backward()
    torch.testing.assert_close(tape.square_norms.float(), expected, rtol=1e-5, atol=0)


class Curved(nn.Module):
    """The parameters and the name ending of a norm, but not linear in them."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight.square()


class OverTokens(nn.LayerNorm):
    """What a token gets depends on others."""

    def forward(self, x):
        return super().forward(x - x.mean(1, keepdim=True))


class Lookup(nn.Embedding):
    """Not a multiple of the rows."""

    def forward(self, ids):
        return super().forward(ids).tanh()


STRANGERS = [nn.Conv1d(2, 2, 1), nn.Bilinear(2, 2, 2), Curved(48), OverTokens(48), Lookup(7, 3)]


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: type(stranger).__name__)
def test_an_unknown_layer_is_an_error_that_names_it(stranger):
    lm, packed = tiny_model(tied=True), pack(make_rollouts(LENGTHS))
    lm.model.stranger = stranger
    with (
        pytest.raises(SettingError, match=rf"model\.stranger.*{type(stranger).__name__}"),
        capture(lm, packed.segments, packed.target_segments),
    ):
        pass
    assert not any("forward" in vars(module) for module in lm.modules())


def measured(lm, packed):
    with capture(lm, packed.segments, packed.target_segments) as tape:
        PolicyModel(lm, TEMPERATURE)(packed)[0].sum().backward()
    return tape.square_norms


def test_a_layer_that_is_used_twice_is_refused_by_name():
    lm, packed = tiny_model(tied=True), pack(make_rollouts(LENGTHS))
    lm.model.layers[1] = lm.model.layers[0]
    with pytest.raises(SettingError, match=r"layer 'model\.layers\.0\.mlp\.down_proj' is used twice"):
        measured(lm, packed)


def test_a_parameter_that_two_layers_share_is_refused_by_name():
    lm, packed = tiny_model(tied=True), pack(make_rollouts(LENGTHS))
    lm.model.layers[1].mlp.gate_proj.weight = lm.model.layers[0].mlp.gate_proj.weight
    with pytest.raises(
        SettingError, match=r"'model\.layers\.0\.mlp\.gate_proj' and 'model\.layers\.1\.mlp\.gate_proj'"
    ):
        measured(lm, packed)


def test_a_layer_that_sees_other_than_tokens_is_refused_by_name():
    lm, packed = tiny_model(tied=True), pack(make_rollouts(LENGTHS))
    mlp = lm.model.layers[0].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x[:, ::2]).repeat_interleave(2, 1)[:, : x.shape[1]]
    with pytest.raises(SettingError, match=r"layer 'model\.layers\.0\.mlp\.gate_proj' \(Linear\) is given .*token"):
        measured(lm, packed)
