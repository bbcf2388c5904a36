"""The ways of a GPU, in float32 on a CPU: large tiles, few buckets, fused norms, a head that is kept. Same oracle.

torch's fused kernel for the backward pass of RMSNorm runs on GPUs alone; its formula stands for it.
"""

import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import FAMILIES, combine, log_gradients, make_rollouts, square_norm, tiny_model

from oblr.batch.packing import pack
from oblr.batch.segments import Segments, cut
from oblr.gradnorm import contractions, head
from oblr.gradnorm.capture import capture
from oblr.gradnorm.contractions import ExactNorms
from oblr.gradnorm.measure import GradNorms
from oblr.gradnorm.precision import rounded_once
from oblr.gradnorm.uses import LinearUse, Weighting
from oblr.plan.placement import as_on_gpu
from oblr.policy import fused
from oblr.policy.fused import fuse_torch
from oblr.policy.model import PolicyModel

LENGTHS = (1, 5, 17, 3, 40, 8, 2, 1)
COEFFICIENTS = torch.tensor([0.5, -1.0, 2.0, 0.1, -0.3, 0.7, 1.1, -0.2])


def rms_norm_backward(gy, x, shape, inverse, weight, mask):
    normed = x * inverse
    scaled = gy * weight
    gx = inverse * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    return gx if mask[0] else None, (gy * normed).flatten(0, -2).sum(0) if mask[1] else None


@pytest.fixture(scope="module", autouse=True)
def kernels():
    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm_backward", rms_norm_backward, "CPU")
    yield
    library._destroy()


@pytest.fixture(params=[2**26, 1000], autouse=True)
def sizes(request, monkeypatch):
    """The head at once, and in slices; Gram matrices at once, and in tiles."""
    monkeypatch.setattr(head, "SLICE", request.param)
    monkeypatch.setattr(contractions, "GPU_GRAM_ROWS", 512 if request.param > 1000 else 7)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("passes", ["one", "two"])
@pytest.mark.parametrize("n_parts", [1, 3])
def test_norms_and_gradients_are_the_oracles(family, tied, passes, n_parts):
    lm, rollouts, group_size = tiny_model(tied, family), make_rollouts(LENGTHS), 4 if n_parts == 1 else 8
    oracle = log_gradients(lm, rollouts, 0.8)
    expected = combine(oracle, COEFFICIENTS.tolist())
    groups = [
        combine(g, c.tolist())
        for g, c in zip(cut(oracle, 8 // group_size), COEFFICIENTS.split(group_size), strict=True)
    ]
    fuse_torch(lm)
    model, parts = PolicyModel(lm, 0.8), [pack(part) for part in cut(rollouts, n_parts)]
    for _ in range(2):  # the second time there is a gradient to add to
        with as_on_gpu(), GradNorms("exact", passes).measure(model, lm, parts, group_size) as measured:
            found = measured.backward(COEFFICIENTS)
        torch.testing.assert_close(
            measured.square_norms, torch.tensor([square_norm(g) for g in oracle]).double(), rtol=1e-5, atol=0
        )
        torch.testing.assert_close(found, torch.tensor([square_norm(g) for g in groups]).double(), rtol=1e-5, atol=0)
    error = {name: p.grad.double() - 2 * expected[name] for name, p in lm.named_parameters()}
    assert (square_norm(error) / square_norm(expected)) ** 0.5 < 2e-5


@pytest.mark.parametrize("tied", [True, False])
def test_the_sketch_is_that_of_a_cpu(tied):
    lm, packed = tiny_model(tied), pack(make_rollouts(LENGTHS))
    sketch, model = GradNorms("sketch", "one"), PolicyModel(lm, 1.0)
    with sketch.measure(model, lm, [packed], 4) as measured:
        expected = measured.square_norms
    with as_on_gpu(), sketch.measure(model, lm, [packed], 4) as measured:
        torch.testing.assert_close(measured.square_norms, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("lengths", [(40,) * 6, (40, 37, 50, 41, 60, 52)])
def test_kept_gradients_are_weighted_in_float32(lengths):
    """They are in bfloat16, their coefficients and sums are not; what is added to stays float32."""
    ids = torch.arange(6).repeat_interleave(torch.tensor(lengths))
    a, b = torch.randn(len(ids), 24).bfloat16(), torch.randn(len(ids), 32).bfloat16()
    layer, segments = torch.nn.Linear(24, 32), Segments(ids, 6)
    each = torch.stack([b[ids == s].double().T @ a[ids == s].double() for s in range(6)])
    coefficients = torch.tensor([1.001, -1, 1, -1, 1, -1], dtype=torch.float64)  # 1.001 is 1 in bfloat16
    with as_on_gpu():
        kept, norms = LinearUse(layer, "weight", b, segments, a).keep(ExactNorms())
        assert kept.gradients.dtype == torch.bfloat16
        rounded = kept.gradients.double()
        found, squares = kept.combine(Weighting(coefficients, 3), torch.ones(32, 24))
    torch.testing.assert_close(norms.double(), each.square().sum((1, 2)), rtol=1e-3, atol=0)
    parts = (coefficients[:, None, None] * rounded).view(2, 3, 32, 24).sum(1)
    torch.testing.assert_close(found.double(), 1 + parts.sum(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(squares.double(), parts.square().sum((1, 2)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("lengths", [(40,) * 6, (40, 37, 50, 41, 60, 52)])
def test_gradients_of_many_groups_are_added_up_together(lengths):
    ids = torch.arange(6).repeat_interleave(torch.tensor(lengths))
    a, b = torch.randn(len(ids), 24), torch.randn(len(ids), 32)
    each = torch.stack([b[ids == s].T @ a[ids == s] for s in range(6)])
    for into in (None, torch.ones(32, 24)):
        with as_on_gpu():
            found, squares = contractions.grouped_gradient(a, b, Segments(ids, 6), into)
        torch.testing.assert_close(found, each.sum(0) + (0 if into is None else 1), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(squares, each.square().sum((1, 2)))
        assert into is None or found is into


def test_fused_layers_compute_the_same_and_capture_gives_them_back():
    lm, packed = tiny_model(tied=True), pack(make_rollouts(LENGTHS))
    model = PolicyModel(lm, 1.0)
    plain = model(packed).logprobs
    fuse_torch(lm)
    fused = model(packed).logprobs
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    own_forwards = {name: vars(module).get("forward") for name, module in lm.named_modules()}
    assert any(own_forwards.values())
    with as_on_gpu(), capture(lm, packed.segments, packed.target_segments):
        pass
    assert {name: vars(module).get("forward") for name, module in lm.named_modules()} == own_forwards
    assert torch.equal(model(packed).logprobs, fused)
    fused.sum().backward()
    own = {name: p.grad.clone() for name, p in lm.named_parameters()}
    lm.zero_grad()
    plain.sum().backward()
    for name, p in lm.named_parameters():
        torch.testing.assert_close(own[name], p.grad, rtol=1e-4, atol=1e-4)


def test_the_residual_stream_is_in_autocasts_precision():
    """As under FSDP2, and in the engine."""
    lm, packed, seen = tiny_model(tied=True), pack(make_rollouts(LENGTHS)), []
    fuse_torch(lm)
    lm.model.layers[1].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        PolicyModel(lm, 1.0)(packed)
        with as_on_gpu(), capture(lm, packed.segments, packed.target_segments):
            lm.model(packed.input_ids, position_ids=packed.position_ids, use_cache=False)
    assert seen == [torch.bfloat16] * 2


def test_weights_are_rounded_once_for_all_micro_batches(monkeypatch):
    """The rounded ones are the same tensors; outside, nothing is kept, and a changed weight is seen."""
    from oblr.gradnorm import precision

    lm, made, original = tiny_model(tied=False), [], precision.autocast
    weight = lm.model.layers[0].mlp.up_proj.weight
    monkeypatch.setattr(precision, "autocast", lambda x: made.append(x.shape) or original(x))
    with torch.autocast("cpu", torch.bfloat16):
        with rounded_once():
            assert precision.rounded(weight) is precision.rounded(weight)
            assert precision.rounded(weight.detach()) is precision.rounded(weight)
        assert len(made) == 1
        with torch.no_grad():
            weight += 1
        assert torch.equal(precision.rounded(weight), weight.bfloat16())


def test_what_a_backward_pass_recomputes_is_not_rounded_again(monkeypatch):
    """On a GPU it runs in a thread of autograd's own, which has none of the context of the one that has called it."""
    from oblr.gradnorm import measure, precision

    lm, packed, made = tiny_model(tied=False), pack(make_rollouts(LENGTHS)), []
    lm.gradient_checkpointing_enable({"use_reentrant": False})
    model, original, differentiate = PolicyModel(lm, 1.0), precision.autocast, measure._differentiate
    matrices = {p.untyped_storage()._cdata: name for name, p in lm.named_parameters() if p.dim() == 2}

    def counted(x):
        if x is not None and (name := matrices.get(x.untyped_storage()._cdata)):
            made.append(name)
        return original(x)

    def elsewhere(function):
        with ThreadPoolExecutor(1) as autograd:
            autograd.submit(differentiate, function).result()

    monkeypatch.setattr(precision, "autocast", counted)
    monkeypatch.setattr(measure, "_differentiate", elsewhere)
    with torch.autocast("cpu", torch.bfloat16), rounded_once():
        for _ in range(2):
            with GradNorms("exact", "one").measure(model, lm, [packed], 4) as measured:
                assert measured.square_norms.isfinite().all()
    layers = [name for name in matrices.values() if "embed_tokens" not in name]
    assert sorted(made) == sorted(layers)


def test_liger_is_asked_for_what_hides_no_norm(monkeypatch, caplog):
    """It runs on GPUs alone: a stand-in takes what the version pinned takes for Qwen3, and is given the model."""
    asked = {}

    def apply(rope=True, cross_entropy=False, fused_linear_cross_entropy=True, rms_norm=True, swiglu=True, model=None):
        asked.update(rope=rope, cross_entropy=cross_entropy, rms_norm=rms_norm, swiglu=swiglu, model=model)
        asked["fused_linear_cross_entropy"] = fused_linear_cross_entropy

    lm, patches = tiny_model(tied=True), types.ModuleType("liger_kernel.transformers.monkey_patch")
    monkeypatch.setattr(fused, "find_spec", lambda _: None)
    fused.fuse(lm)
    assert "liger-kernel is not installed" in caplog.text
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen3": apply}
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, patches.__name__, patches)
    monkeypatch.setattr(fused, "find_spec", lambda _: object())
    fused.fuse(lm)
    assert asked.pop("model") is lm
    assert {name for name, value in asked.items() if value} == {"rope", "swiglu"}
