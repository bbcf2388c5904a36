"""Gradient norms of the sequences in a micro-batch, and their weighted gradient, in as few passes as memory allows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn

from oblr.batch.packing import PackedBatch
from oblr.batch.segments import Segments
from oblr.batch.types import ResponseTokens, TokenStatistics
from oblr.gradnorm.capture import capture
from oblr.gradnorm.contractions import ExactNorms, LinearNorms, SketchNorms
from oblr.gradnorm.precision import no_autocast
from oblr.gradnorm.tape import GradientSum
from oblr.kinds import Count, Seed, checked

Tier = Literal["exact", "sketch", "logit", "length", "uniform"]
Passes = Literal["auto", "one", "two"]
Model = Callable[[PackedBatch], TokenStatistics]
#: ``f_t`` of every response token, float64 [n]
Factors = Callable[[ResponseTokens], Tensor]


@dataclass(frozen=True)
class Measured:
    """Complete groups, after a forward pass.

    Attributes:
        tokens: what was found out about the response tokens.
        square_norms: ``n_i`` or what stands for it, float64 [S].
        entropy: of the distribution that each response token was drawn from, in nats, float32 [n].
        backward: given coefficients ``c_i`` [S], adds ``Σ_i c_i Σ_t f_it ∇θ log π(o_it|q, o_i,<t)`` to ``.grad`` and
            returns the squared norm of each group's part, float64 [groups]. If ``per_token``, it is given ``c_it`` [n]
            in place of ``c_i f_it``. Call it once, inside the context.
    """

    tokens: ResponseTokens
    square_norms: Tensor
    entropy: Tensor
    backward: Callable[[Tensor], Tensor]


@checked("gradnorm")
class GradNorms:
    """Finds ``n_i = ‖∇θ log π(o_i|q)‖²`` of every sequence, or what stands for it.

    Args:
        tier: what the norm of a response is: ``exact``; ``sketch``, an unbiased estimate from random projections; or
            without any norm ``logit`` (``Σ_t 1 − 2π_t + Σ_v π_v²``, arXiv 2602.07078), ``length`` (response tokens),
            ``uniform`` (1). Whatever it is, a leave-one-out baseline leaves the gradient unbiased; a poorer one costs
            variance.
        passes: ``one`` keeps every layer's output gradient until the coefficients are known; ``two`` computes forward
            and backward again; ``auto`` takes one pass where memory allows, see :mod:`~oblr.gradnorm.passes`. Tiers
            without norms need one plain pass.
            A group in several micro-batches is passed over twice whatever the setting.
        probes: random projections per layer of ``sketch``.
        seed: of the projections.
    """

    def __init__(self, tier: Tier = "exact", passes: Passes = "auto", probes: Count = 24, seed: Seed = 0):
        self.tier, self.passes, self.probes, self.seed = tier, passes, probes, seed
        self.gram_rows: int | None = None  # of a Gram matrix that are made at a time; None: as many as suit the device

    @property
    def words(self) -> str:
        """Words for the weights of rewards in the baseline, for the header of a report."""
        tiers: dict[Tier, str] = {
            "exact": "exact squared gradient norm of each response",
            "sketch": f"squared gradient norm of each response, estimated by {self.probes} projections",
            "logit": "energy of the logits' gradients",
            "length": "length of each response",
            "uniform": "all alike",
        }
        return tiers[self.tier]

    @property
    def has_norms(self) -> bool:
        """Whether ``n_i`` are squared norms, exact or estimated."""
        return self.tier in ("exact", "sketch")

    @contextmanager
    def measure(
        self,
        model: Model,
        lm: nn.Module,
        parts: Sequence[PackedBatch],
        group_size: int,
        step: int = 0,
        factors: Factors | None = None,
        per_token: bool = False,
    ) -> Iterator[Measured]:
        """Pass over complete groups: those of one micro-batch, or a single group that is spread over several.

        Args:
            model: says what it makes of a micro-batch's targets, with ``lm`` inside.
            parts: the micro-batches, whose sequences follow each other group by group.
            group_size: G.
            step: varies the sketch's projections.
            factors: constants ``f_t`` of the tokens' gradients, 1 if None: ``n_i = ‖Σ_t f_it ∇θ log π_it‖²``.
            per_token: whether ``backward`` will be given coefficients of tokens, which takes a pass of its own.
        """
        remaining = None if per_token else factors  # those of backward; coefficients of tokens come with their own
        twice = partial(self.second_pass, model, lm, parts, group_size, remaining)
        if len(parts) > 1 or (self.has_norms and (per_token or self.passes != "one")):
            yield _joined([self.first_pass(model, lm, packed, step, factors) for packed in parts], group_size, twice)
            return
        (packed,) = parts
        if self.has_norms:
            norms = self.linear_norms(step)
            with capture(lm, packed.segments, packed.target_segments, "record", norms, packed.token_ids) as tape:
                found = _Found(packed, model(packed))
                _differentiate(found.weighted_sum(None, factors))
            once = partial(tape.accumulate, group_size=group_size)
            try:
                yield _joined([(found, tape.square_norms)], group_size, once)
            finally:
                tape.kept.clear()
            return
        with capture(lm, *_merged(packed, group_size), "weights", None, packed.token_ids) as tape:
            found = _Found(packed, model(packed))

            def weigh(coefficients: Tensor) -> Tensor:
                _differentiate(found.weighted_sum(coefficients, remaining))
                return tape.square_norms

            yield _joined([(found, self.proxy(found))], group_size, weigh)

    def first_pass(
        self, model: Model, lm: nn.Module, packed: PackedBatch, step: int = 0, factors: Factors | None = None
    ) -> "tuple[_Found, Tensor]":
        """Statistics of a micro-batch's tokens, and norms of its sequences; no gradient is made."""
        if not self.has_norms:
            with torch.no_grad():
                found = _Found(packed, model(packed))
            return found, self.proxy(found)
        norms = self.linear_norms(step)
        with capture(lm, packed.segments, packed.target_segments, "norms", norms, packed.token_ids) as tape:
            found = _Found(packed, model(packed))
            _differentiate(found.weighted_sum(None, factors))
        return found, tape.square_norms

    def second_pass(
        self,
        model: Model,
        lm: nn.Module,
        parts: Sequence[PackedBatch],
        group_size: int,
        factors: Factors | None,
        coefficients: Tensor,
    ) -> Tensor:
        """A plain weighted forward and backward that sees the groups' parts go by."""
        if len(parts) == 1:
            with capture(lm, *_merged(parts[0], group_size), "weights", None, parts[0].token_ids) as tape:
                _differentiate(_Found(parts[0], model(parts[0])).weighted_sum(coefficients, factors))
            return tape.square_norms
        gradient = GradientSum()
        counts = [packed.segments.count for packed in parts]
        sizes = counts if len(coefficients) == sum(counts) else [len(packed.targets) for packed in parts]
        for packed, own in zip(parts, coefficients.split(sizes), strict=True):
            with capture(lm, *_merged(packed, packed.segments.count), "sum", None, packed.token_ids) as tape:
                tape.sum = gradient
                _differentiate(_Found(packed, model(packed)).weighted_sum(own, factors))
        return gradient.release()[None]

    def linear_norms(self, step: int) -> LinearNorms:
        """Exact contraction, or a sketch whose projections depend on seed, step and the order of layers alone."""
        if self.tier == "exact":
            return ExactNorms(self.gram_rows)
        return SketchNorms(self.probes, torch.Generator().manual_seed(hash((self.seed, step)) % 2**63))

    def proxy(self, found: "_Found") -> Tensor:
        """Stand-ins for ``n_i`` in the tiers that need no norms, float64 [S]."""
        tokens = found.tokens
        if self.tier == "uniform":
            return torch.ones_like(tokens.behaviour)
        return tokens.sums(tokens.energy) if self.tier == "logit" else tokens.lengths.double()


def _merged(packed: PackedBatch, group_size: int) -> tuple[Segments, Segments]:
    return packed.segments.merge(group_size), packed.target_segments.merge(group_size)


def _differentiate(function: Tensor) -> None:
    with no_autocast(function):
        function.backward()


@dataclass(frozen=True)
class _Found:
    """A micro-batch and what the policy says of its tokens."""

    packed: PackedBatch
    statistics: TokenStatistics

    @cached_property
    def tokens(self) -> ResponseTokens:
        """Each response a group of its own, and nothing of what the head sees: that is large, and wanted once."""
        segments, order = self.packed.target_segments, self.packed.order
        behaviour = self.packed.behaviour_logprobs.double()
        return ResponseTokens(
            logs=(self.statistics.logprobs.detach().double() - behaviour)[order],
            energy=self.statistics.energy[order],
            sequences=self.packed.owners,
            behaviour=segments.sum(behaviour),
            lengths=segments.lengths,
            group_size=1,
        )

    def weighted_sum(self, coefficients: Tensor | None, factors: Factors | None) -> Tensor:
        """``Σ_t c_t f_t log π_t``; ``coefficients`` are those of tokens [n] or of sequences [S], 1 if None."""
        logprobs, tokens = self.statistics.logprobs[self.packed.order], self.tokens
        terms = torch.ones_like(tokens.logs) if coefficients is None else tokens.spread(coefficients)
        if factors is not None:
            terms = terms * factors(tokens)
        return (terms.to(logprobs) * logprobs).sum()


def _joined(
    passes: "Sequence[tuple[_Found, Tensor]]", group_size: int, backward: Callable[[Tensor], Tensor]
) -> Measured:
    parts, norms = [found.tokens for found, _ in passes], [norms for _, norms in passes]
    first = [0, *accumulate(len(part.behaviour) for part in parts)]
    tokens = ResponseTokens(
        logs=torch.cat([part.logs for part in parts]),
        energy=torch.cat([part.energy for part in parts]),
        sequences=torch.cat([part.sequences + start for part, start in zip(parts, first, strict=False)]),
        behaviour=torch.cat([part.behaviour for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
        group_size=group_size,
        hidden=torch.cat([found.statistics.hidden[found.packed.order] for found, _ in passes]),
    )
    entropy = torch.cat([found.statistics.entropy[found.packed.order] for found, _ in passes])
    return Measured(tokens, torch.cat(norms), entropy, backward)
