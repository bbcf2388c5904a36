"""What a causal LM does around its head, found by its own forward with base model and head replaced.

Some scale the hidden states (MiniCPM) or the logits (Granite, Cohere), or bend them by a soft cap (Gemma 2). The step
applies the head to some of the tokens alone, often slice by slice, and has to do the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from oblr.errors import SettingError

#: Positions that are tried.
TRIED = 4


@dataclass(frozen=True)
class HeadPath:
    """``logits = cap · tanh(scale · head(before · h)/cap)``; a cap of None bends nothing.

    Attributes:
        before: factor of the hidden states.
        scale: of the logits.
        cap: what logits stay below.
    """

    before: float = 1.0
    scale: float = 1.0
    cap: float | None = None

    def bend(self, logits: Tensor) -> Tensor:
        """Of the head's output, float32."""
        if self.cap is None:
            return logits if self.scale == 1 else logits * self.scale
        return self.cap * torch.tanh(logits * (self.scale / self.cap))


def head_path(lm: PreTrainedModel) -> HeadPath:
    """Whatever the weights of ``lm``, which may lie on no device at all: none is looked at.

    Raises:
        SettingError: the model has no head, or does something else around it.
    """
    base, head = lm.base_model, lm.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None or base is lm:
        refuse(lm, "it does not say which layers are its base model and its head")
    rows, width = head.weight.shape
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(1, TRIED, width, generator=generator, device="cpu")
    z = torch.linspace(-60, 60, TRIED * rows, device="cpu")
    z = z[torch.randperm(TRIED * rows, generator=generator, device="cpu")].view(1, TRIED, rows)
    seen, bent = _forward(lm, base, head, h, z)
    before = _factor(h, seen)
    if before is None:
        refuse(lm, "it does more than scale what its head is given")
    if (scale := _factor(z, bent)) is not None:
        return HeadPath(before, scale)
    if bent.shape == z.shape:
        ends, slope = (_forward(lm, base, head, h, z * factor)[1].float() for factor in (1e6, 1e-6))
        path = HeadPath(before, _factor(z * 1e-6, slope) or 1.0, ends.max().item())
        if torch.allclose(path.bend(z), bent.float(), rtol=1e-4, atol=1e-4):
            return path
    refuse(lm, "it does more than scale or cap the logits of its head")


def refuse(lm: PreTrainedModel, what: str) -> NoReturn:
    raise SettingError("policy.path", f"{type(lm).__name__} cannot be trained here: {what}", "use another model")


def _factor(x: Tensor, y: Tensor) -> float | None:
    """``c`` where ``y = c x``."""
    if x.shape != y.shape:
        return None
    if torch.equal(x, y):
        return 1.0
    factor = ((x * y).sum() / x.square().sum()).item()
    return factor if torch.allclose(y.float(), factor * x, rtol=1e-4, atol=1e-5 * float(y.abs().max())) else None


class _Outputs(tuple[Tensor]):
    """Of a base model: hidden states, and nothing else that one may ask for."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _forward(lm: PreTrainedModel, base: nn.Module, head: nn.Module, h: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """What the head is given where the base model returns ``h``, and the logits where the head returns ``z``."""
    given: list[Tensor] = []

    def told(x: Tensor) -> Tensor:
        given.append(x.clone())
        return z.clone()  # which may be changed in place

    with torch.no_grad(), _instead(base, lambda *_, **__: _Outputs([h.clone()])), _instead(head, told):
        try:
            logits = lm(input_ids=torch.zeros(1, TRIED, dtype=torch.long, device="cpu"), use_cache=False).logits
        except Exception as error:
            refuse(lm, f"its logits are not found: {type(error).__name__}: {error}")
    if len(given) != 1 or not isinstance(logits, Tensor):
        refuse(lm, "its logits are not those of its head")
    return given[0], logits


@contextmanager
def _instead(module: nn.Module, forward: Any) -> Iterator[None]:
    before = vars(module).get("forward")
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before  # type: ignore[method-assign]
