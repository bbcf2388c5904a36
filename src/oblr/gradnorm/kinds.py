"""Which layers have gradient norms that are known, by what they compute: tried out on numbers, since names are shared.

Layers are tried once: what they compute does not change.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from oblr.gradnorm.loaded import loaded

#: Layers that have been found to be plain RMSNorms, and to be scales, or not to be.
_RMS_NORMS: WeakSet[nn.Module] = WeakSet()
_SCALES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
#: Of embeddings that are not plain ones, by the precision that they are in.
_LOOKUPS: WeakKeyDictionary[nn.Module, dict[torch.dtype, Tensor | None]] = WeakKeyDictionary()


@contextmanager
def given(module: nn.Module, parameters: dict[str, Tensor]) -> Iterator[None]:
    """``module`` has these in place of its own parameters, whoever has replaced its forward."""
    before = {name: module._parameters[name] for name in parameters}
    module._parameters.update(parameters)  # type: ignore[arg-type]
    try:
        yield
    finally:
        module._parameters.update(before)


def is_linear(module: nn.Module) -> bool:
    """Whether ``y = x Wᵀ + b``."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def is_transposed(module: nn.Module) -> bool:
    """Whether ``y = x W + b``."""
    conv1d = loaded("transformers.pytorch_utils", "Conv1D")
    return isinstance(module, conv1d) and type(module).forward is conv1d.forward


def lookup_scale(module: nn.Embedding, forward: Callable[[Tensor], Tensor]) -> Tensor | None:
    """``c`` where an embedding gives ``c W[ids]``, in the weight's precision; None where it does not."""
    if module.max_norm is not None or module.scale_grad_by_freq:
        return None
    if type(module).forward is nn.Embedding.forward:
        return torch.ones(())
    known, precision = _LOOKUPS.setdefault(module, {}), module.weight.dtype
    if precision not in known:
        known[precision] = _tried_as_lookup(module, forward)
    return known[precision]


def _tried_as_lookup(module: nn.Embedding, forward: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Given a table of ones, and one whose rows all differ: each begins one number further on in the same row."""
    weight, ids = module.weight, torch.tensor([[0, 1]], device=module.weight.device)
    line = torch.randint(1, 129, (sum(weight.shape),), generator=torch.Generator().manual_seed(0)).to(weight)
    table = line.as_strided(weight.shape, (1, 1))
    with torch.no_grad():
        with given(module, {"weight": torch.ones_like(line[:1]).expand(weight.shape)}):
            scale = forward(ids).flatten()
        with given(module, {"weight": table}):
            scaled = forward(ids)
    alike = bool((scale == scale[0]).all()) and torch.equal(scaled, table[ids] * scale[0])
    return scale[0] if alike else None


def rms_norm_epsilon(module: nn.Module) -> float | None:
    """ε if ``module`` computes ``w ⊙ x/√(mean x² + ε)``: checked on numbers, since variants share the name."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if module in _RMS_NORMS:  # a capture is made for every micro-batch; the formula does not change between them
        return eps
    if eps is None or weight is None or weight.ndim != 1 or len(list(module.parameters())) != 1:
        return None
    weight = torch.linspace(0.5, 2, len(weight))  # not the weight itself, which may be sharded
    x = torch.linspace(-1, 1, 2 * len(weight)).view(2, -1)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    found = tried(module, module.forward, {"weight": weight}, x)
    if found is None or not torch.allclose(found, expected):
        return None
    _RMS_NORMS.add(module)
    return eps


def is_scale(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> bool:
    """Whether ``y = A(x) + D(x) ⊙ w + b``, token by token, over trailing axes that are those of ``w`` and ``b``.

    So are LayerNorms and RMSNorms of every kind, those that scale with 1 + w among them.
    """
    if module not in _SCALES:
        _SCALES[module] = _tried_as_scale(module, forward)
    return _SCALES[module]


def _tried_as_scale(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> bool:
    own = dict(module.named_parameters())
    if not own.keys() <= {"weight", "bias"} or "weight" not in own or len(own) != len(list(module.parameters(False))):
        return False
    shape = own["weight"].shape
    if not shape or any(p.shape != shape for p in own.values()):
        return False
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*size, *shape, generator=generator) for size in ((3, 2), (), ()))
    drawn = {"weight": w, "bias": b} if "bias" in own else {"weight": w}
    found, alone = (tried(module, forward, drawn, tokens) for tokens in (x, x[:1, :1]))
    if found is None or alone is None or found.shape != x.shape or not torch.allclose(alone, found[:1, :1], atol=1e-5):
        return False
    constant, factor = scale_parts(module, forward, x)
    expected = constant + factor * w + drawn.get("bias", torch.zeros(()))
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def scale_parts(module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """``A(x)`` and ``D(x)`` of :func:`is_scale`."""
    p = module._parameters["weight"]
    assert p is not None
    zeros = torch.zeros(p.shape, device=x.device, dtype=x.dtype)
    biases = {"bias": zeros} if module._parameters.get("bias") is not None else {}
    with torch.no_grad():
        with given(module, {"weight": zeros, **biases}):
            constant = forward(x)
        with given(module, {"weight": torch.ones_like(zeros), **biases}):
            return constant, forward(x) - constant


def tried(module: nn.Module, forward: Callable[[Tensor], Any], parameters: dict[str, Tensor], x: Tensor) -> Any:
    """What a layer gives with these parameters; None where it takes something else, and is of no known kind."""
    try:
        with torch.no_grad(), given(module, parameters):
            found = forward(x)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return None
    return found if isinstance(found, Tensor) else None
