"""What one forward and backward pass through a model says of its sequences, layer by layer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from oblr.batch.segments import Segments, distinct_tokens
from oblr.errors import UnmeasuredError
from oblr.gradnorm import contractions, kinds
from oblr.gradnorm.axes import token_axis, token_rows
from oblr.gradnorm.contractions import ExactNorms
from oblr.gradnorm.head import HeadUse
from oblr.gradnorm.uses import EmbeddingRows, EmbeddingUse, LinearUse, SumUse, Use
from oblr.statistics.sketch import Sketch

#: The label of a token whose log-probability is not asked for.
IGNORED = -100


@dataclass(frozen=True)
class TiedColumns:
    """The use of a head that is tied to the embedding: its output's gradient at the tokens that a sequence has itself.

    Attributes:
        of_each: of each sequence, float32 [T, U], and the head's inputs [T, D].
    """

    of_each: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, b: Tensor, a: Tensor, segments: Segments, token_ids: Tensor, body: Segments) -> Self:
        """Of ``b`` [n, V] and ``a`` [n, D]; which tokens there are is said by ``token_ids`` of the ``body``."""
        distinct = distinct_tokens(token_ids, body)
        ids = [contractions.tokens(distinct.ids, span) for span in distinct.segments.spans]
        spans = zip(segments.spans, ids, strict=True)
        parts = ((contractions.tokens(b, span), contractions.tokens(a, span), own) for span, own in spans)
        return cls([(mine.index_select(1, own).float(), h) for mine, h, own in parts])

    def cross_terms(self, rows: EmbeddingRows) -> Tensor:
        products = zip(self.of_each, rows.of_each(), strict=True)
        return torch.stack([2 * (columns * (h.float() @ table.mT)).sum() for (columns, h), (table, _) in products])


@dataclass
class Part:
    """Sequences of a pass, or groups of ``size`` of them: squared norms of their gradients so far.

    Attributes:
        segments: of all tokens.
        squares: [S], by parameter and layer.
    """

    segments: Segments
    size: int = 1
    norms: ExactNorms = field(default_factory=ExactNorms)
    squares: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    tied: TiedColumns | HeadUse | None = None


class Pass:
    """One forward pass of ``R`` rows of ``L`` tokens, and what the backward pass through it has found so far.

    Args:
        token_ids: int64 [R, L].
        ids: which sequence each token is of, int64 [R, L] on the CPU; None: each row is one.
        group_size: of consecutive sequences whose joint gradients are measured as well.
        names: of the parameters.
        size, seed: of each parameter's :class:`~oblr.statistics.sketch.Sketch`.
    """

    def __init__(
        self,
        token_ids: Tensor,
        ids: Tensor | None,
        group_size: int | None,
        names: dict[Tensor, str],
        size: int,
        seed: str,
    ):
        self.rows, self.device, self.by_rows = token_ids.shape, token_ids.device, ids is None
        self.token_ids = token_ids.flatten().cpu()
        n_rows, length = self.rows
        host = torch.arange(n_rows).repeat_interleave(length) if ids is None else ids.flatten()
        self.count = int(host.max()) + 1
        segments = Segments(host, self.count, self.device)
        self.each = Part(segments)
        self.parts = [self.each]
        if group_size is not None:
            if self.count % group_size:
                problem = f"{self.count} sequences of a forward pass are no complete groups of {group_size}"
                raise UnmeasuredError(problem, "leave group_size out, and name groups at the step")
            self.parts.append(Part(segments.merge(group_size), group_size))
        self.names, self.size, self.seed = names, size, seed
        self.sketches: dict[tuple[str, str], Tensor] = {}
        self.rounded = False

    def take(self, name: str, module: nn.Module, which: str, squares: Iterable[Tensor], sketch: Tensor) -> None:
        """Account for a parameter's use, whose squared norms are those of sequences, and of groups if asked for."""
        key = self.names[module.get_parameter(which)], name
        if key in self.sketches:
            raise UnmeasuredError(
                f"layer {name!r} is used twice in a pass, or a second pass began before the backward pass of the first",
                "freeze it, or turn re-entrant checkpointing off (use_reentrant=False)",
            )
        self.sketches[key] = sketch
        for part, found in zip(self.parts, squares, strict=True):
            part.squares[key] = found

    def _squares(self, uses: Sequence[Use]) -> Iterator[Tensor]:
        return (use.square_norms(part.norms) for part, use in zip(self.parts, uses, strict=True))

    def linear(self, name: str, module: nn.Module, x: Tensor, gy: Tensor, head: bool, tied: bool) -> None:
        """Of a layer ``y = x Wᵀ + b``, or ``y = x W + b``."""
        a, b = x.flatten(0, -2).to(gy.dtype), gy.flatten(0, -2)
        self.rounded |= gy.dtype != torch.float32
        segments = self._of_head(name, x) if head else self._checked(name, module, x, 1)
        weight, bias = module.get_parameter("weight"), module._parameters.get("bias")
        if weight.requires_grad:
            left, right = (a, b) if kinds.is_transposed(module) else (b, a)
            sketch = self._sketch(weight).of_products(left, right, segments[0])
            uses = [LinearUse(module, "weight", left, own, right, tied=tied) for own in segments]
            self.take(name, module, "weight", self._squares(uses), sketch)
            for part, own in zip(self.parts, segments, strict=True) if tied else ():
                part.tied = TiedColumns.of(b, a, own, self.token_ids, part.segments)
        if bias is not None and bias.requires_grad:
            self.sums(name, module, "bias", b, segments)

    def fused_head(
        self,
        name: str,
        module: nn.Module,
        labels: Tensor,
        log_probs: Tensor,
        temperature: float,
        x: Tensor,
        g: Tensor,
    ) -> None:
        """Of a head that nobody calls: log-probabilities were computed of its weight.

        Args:
            labels: int64 [R, L − 1], of each token but the first of its row; −100 where there is none.
            log_probs: of the labels, [R, L − 1].
            x: what the head would be given, [R, L, D].
            g: gradient of ``log_probs``.
        """
        kept = (labels != IGNORED).cpu()
        ids = self.each.segments.host.view(self.rows)[:, :-1][kept]
        there = kept.to(g.device)
        a, b, targets = x[:, :-1][there], g[there].float(), labels[there]
        each = Segments(ids, self.count, self.device)
        segments = [each if part.size == 1 else each.merge(part.size) for part in self.parts]
        weight = module.get_parameter("weight")
        rows = weight.detach().to(a.dtype)
        own_logits = (a.float() * rows[targets].float()).sum(1) / temperature
        log_normaliser = own_logits - log_probs[there].float()
        uses = [HeadUse(module, "weight", b, own, a, rows, targets, log_normaliser, temperature) for own in segments]
        squares = [torch.zeros(own.count, device=self.device) for own in segments]
        sketch, sketched = self._sketch(weight), torch.zeros((), device=self.device)
        for first, some in uses[0].slices():
            sketched = sketched + sketch.of_products(some.b, some.a, each, first)
            for part, own, found in zip(self.parts, segments, squares, strict=True):
                found += replace(some, segments=own).square_norms(part.norms)
        self.take(name, module, "weight", squares, sketched)
        for part, use in zip(self.parts, uses, strict=True):
            part.tied = use

    def embedding(self, name: str, module: nn.Embedding, ids: Tensor, gy: Tensor, own: bool) -> None:
        """Of a table that is looked up; ``own`` where it is the one that tokens are looked up in."""
        segments = self._all if own else self._checked(name, module, ids, 0)
        scale = kinds.lookup_scale(module, module.forward)
        assert scale is not None
        e = gy.flatten(0, -2).float() * scale.item()
        if module.padding_idx is not None:  # this row has no gradient
            e = e * (ids.flatten() != module.padding_idx)[:, None]
        sketch = self._sketch(module.weight).of_lookups(ids.flatten(), e, segments[0])
        token_ids = self.token_ids if own else ids.flatten().cpu()
        squares = []
        for part in self.parts:
            use = EmbeddingUse(module, "weight", e, part.segments, token_ids, None)
            rows = use.rows()
            tying = part.tied.cross_terms(rows) if own and part.tied is not None else 0
            squares.append(use.norms_of(rows) + tying)
        self.take(name, module, "weight", squares, sketch)

    def scale(self, name: str, module: nn.Module, x: Tensor, gy: Tensor) -> None:
        """Of a layer ``y = A(x) + D(x) ⊙ w + b``, such as norms are."""
        weight, bias = module.get_parameter("weight"), module._parameters.get("bias")
        dimensions = weight.ndim
        axis = self._axis(name, module, x, dimensions)

        def sums(products: Tensor) -> Tensor:
            return token_rows(products, axis, self.rows, dimensions).sum(1)

        if weight.requires_grad:
            eps = kinds.rms_norm_epsilon(module)
            if eps is None:
                _, factor = kinds.scale_parts(module, module.forward, x.float())
            else:
                factor = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype)
            self.sums(name, module, "weight", sums(gy.float() * factor), self._all)
        if bias is not None and bias.requires_grad:
            self.sums(name, module, "bias", sums(gy.float()), self._all)

    def sums(self, name: str, module: nn.Module, which: str, b: Tensor, segments: list[Segments]) -> None:
        """Of a parameter whose gradient is the sum over tokens of ``b`` [n, size]."""
        p = module.get_parameter(which)
        found = [own.sum(b.float()) for own in segments]
        uses = [SumUse(module, which, one, own) for one, own in zip(found, segments, strict=True)]
        self.take(name, module, which, self._squares(uses), self._sketch(p).of_sums(found[0].unflatten(1, p.shape)))

    def _sketch(self, p: Tensor) -> Sketch:
        return Sketch(p.shape, self.size, self.seed, self.names[p], self.device)

    def _axis(self, name: str, module: nn.Module, x: Tensor, trailing: int) -> int:
        """The axis of tokens in what a layer is given."""
        axis = token_axis(module, x.shape, self.rows, trailing)
        if axis is None:
            raise self._misshapen(name, module, x)
        return axis

    def _misshapen(self, name: str, module: nn.Module, x: Tensor) -> UnmeasuredError:
        problem = f"layer {name!r} ({type(module).__name__}) is given {list(x.shape)}: not one row a token"
        positions = isinstance(module, nn.Embedding)
        fix = "freeze it, or give the model position_ids of all tokens" if positions else "freeze it"
        return UnmeasuredError(problem, fix)

    @property
    def _all(self) -> list[Segments]:
        return [part.segments for part in self.parts]

    def _checked(self, name: str, module: nn.Module, x: Tensor, trailing: int) -> list[Segments]:
        """The sequences, and groups, of the rows that a layer is given, one a token."""
        self._axis(name, module, x, trailing)
        if x.shape[: x.ndim - trailing].numel() != self.rows.numel():
            raise self._misshapen(name, module, x)
        return self._all

    def _of_head(self, name: str, x: Tensor) -> list[Segments]:
        """Those of the rows that the head is given, which may be a part of each."""
        if x.shape[:-1].numel() == self.rows.numel():
            return self._all
        if not (self.by_rows and x.ndim == 3 and x.shape[0] == self.rows[0]):
            problem = f"the head {name!r} is given {list(x.shape)}: whose tokens these are is not known"
            raise UnmeasuredError(problem, "compute all positions' logits, or give each sequence a row of its own")
        each = Segments(torch.arange(len(x)).repeat_interleave(x.shape[1]), self.count, self.device)
        return [each if part.size == 1 else each.merge(part.size) for part in self.parts]
