"""Weights of the sequences in a micro-batch, and the weighted gradient, in as few passes as memory allows."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from oblr.errors import SettingError
from oblr.gradnorm.capture import GradientSum, capture
from oblr.gradnorm.contractions import ExactNorms, LinearNorms, SketchNorms
from oblr.gradnorm.precision import no_autocast
from oblr.packing import PackedBatch, Segments
from oblr.types import TokenScores

Tier = Literal["exact", "sketch", "logit", "length", "uniform"]
Passes = Literal["auto", "one", "two"]
Scorer = Callable[[PackedBatch], TokenScores]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SequenceScores:
    """Complete groups, scored.

    Attributes:
        log_ratios: ``log π(o_i|q) − log μ(o_i|q)``, float64 [S].
        weights: ``n_i`` or what stands for it, float64 [S].
        entropy: of the distribution that each response token was drawn from, in nats, float32 [n].
        backward: given coefficients ``c_i`` [S], adds ``Σ_i c_i ∇θ log π(o_i|q)`` to ``.grad`` and returns the squared
            norm of each group's part, float64 [groups]. Call it once, inside the context.
    """

    log_ratios: Tensor
    weights: Tensor
    entropy: Tensor
    backward: Callable[[Tensor], Tensor]


class GradNorms:
    """Finds ``n_i = ‖∇θ log π(o_i|q)‖²`` of every sequence, or what stands for it.

    Args:
        tier: ``exact``; ``sketch``, an unbiased estimate from random projections; or without any norm ``logit``
            (``Σ_t 1 − 2π_t + Σ_v π_v²``, arXiv 2602.07078), ``length`` (response tokens), ``uniform`` (1). Whatever the
            weights, a leave-one-out baseline leaves the gradient unbiased; poorer ones cost variance.
        passes: ``one`` keeps every layer's output gradient until the coefficients are known; ``two`` computes forward
            and backward again; ``auto`` takes one pass where memory allows. Tiers without norms need one plain pass.
            A group in several micro-batches is passed over twice whatever the setting.
        probes: random projections per layer of ``sketch``.
        seed: of the projections.

    Raises:
        SettingError: unknown tier or passes, or no probe.
    """

    def __init__(self, tier: Tier = "exact", passes: Passes = "auto", probes: int = 24, seed: int = 0):
        for setting, value, options in (("tier", tier, Tier), ("passes", passes, Passes)):
            if value not in get_args(options):
                raise SettingError(f"gradnorm.{setting}", f"{value!r} is unknown", f"use one of {get_args(options)}")
        if probes < 1:
            raise SettingError("gradnorm.probes", f"{probes} is not a count", "use at least 1")
        self.tier, self.passes, self.probes, self.seed = tier, passes, probes, seed

    @property
    def measures(self) -> bool:
        """Whether the weights are squared norms, exact or estimated."""
        return self.tier in ("exact", "sketch")

    @contextmanager
    def score(
        self, scorer: Scorer, lm: nn.Module, parts: Sequence[PackedBatch], group_size: int, step: int = 0
    ) -> Iterator[SequenceScores]:
        """Score complete groups: those of one micro-batch, or a single group that is spread over several.

        Args:
            scorer: gives the scores of a micro-batch's targets; ``lm`` is the model that it uses.
            parts: the micro-batches, whose sequences follow each other group by group.
            group_size: G.
            step: varies the sketch's projections.
        """
        twice = partial(self.second_pass, scorer, lm, parts, group_size)
        if len(parts) > 1 or (self.measures and self.passes != "one"):
            yield _joined([self.first_pass(scorer, lm, packed, step) for packed in parts], parts, twice)
            return
        (packed,) = parts
        if self.measures:
            norms = self.linear_norms(step)
            with capture(lm, packed.segments, packed.target_segments, "record", norms) as tape:
                tokens = scorer(packed)
                _differentiate(tokens.logprobs.sum())
            once = partial(tape.accumulate, group_size=group_size)
            try:
                yield _joined([(tokens, tape.square_norms)], parts, once)
            finally:
                tape.kept.clear()
            return
        with capture(lm, *_merged(packed, group_size), "weights") as tape:
            tokens = scorer(packed)

            def weigh(coefficients: Tensor) -> Tensor:
                _differentiate(_weighted_sum(tokens, packed, coefficients))
                return tape.square_norms

            yield _joined([(tokens, self.proxy(tokens, packed))], parts, weigh)

    def first_pass(self, scorer: Scorer, lm: nn.Module, packed: PackedBatch, step: int) -> tuple[TokenScores, Tensor]:
        """The scores of a micro-batch's tokens, and the weights of its sequences; no gradient is made."""
        if not self.measures:
            with torch.no_grad():
                tokens = scorer(packed)
            return tokens, self.proxy(tokens, packed)
        with capture(lm, packed.segments, packed.target_segments, "norms", self.linear_norms(step)) as tape:
            tokens = scorer(packed)
            _differentiate(tokens.logprobs.sum())
        return tokens, tape.square_norms

    def second_pass(
        self, scorer: Scorer, lm: nn.Module, parts: Sequence[PackedBatch], group_size: int, coefficients: Tensor
    ) -> Tensor:
        """A plain weighted forward and backward that sees the groups' parts go by."""
        if len(parts) == 1:
            with capture(lm, *_merged(parts[0], group_size), "weights") as tape:
                _differentiate(_weighted_sum(scorer(parts[0]), parts[0], coefficients))
            return tape.square_norms
        gradient = GradientSum()
        for packed, own in zip(parts, coefficients.split([part.segments.count for part in parts]), strict=True):
            with capture(lm, *_merged(packed, packed.segments.count), "sum") as tape:
                tape.sum = gradient
                _differentiate(_weighted_sum(scorer(packed), packed, own))
        return gradient.release()[None]

    def linear_norms(self, step: int) -> LinearNorms:
        """Exact contraction, or a sketch whose projections depend on seed, step and the order of layers alone."""
        if self.tier == "exact":
            return ExactNorms()
        return SketchNorms(self.probes, torch.Generator().manual_seed(hash((self.seed, step)) % 2**63))

    def proxy(self, tokens: TokenScores, packed: PackedBatch) -> Tensor:
        """The weights of the tiers that need no norms, float64 [S]."""
        if self.tier == "logit":
            per_token = (1 - 2 * tokens.logprobs.detach().exp() + tokens.collision).clamp(min=0)
        else:
            per_token = torch.ones_like(tokens.collision)
        weights = packed.target_segments.sum(per_token.double())
        return torch.ones_like(weights) if self.tier == "uniform" else weights

    def choose_passes(self, lm: nn.Module, token_budget: int, least: Callable[[float], float] = lambda x: x) -> None:
        """Settle ``passes=auto`` for micro-batches of ``token_budget`` tokens and log why.

        Args:
            least: the smallest of a number over all ranks, which must choose alike: collectives run inside each pass.
        """
        if self.passes != "auto" or not self.measures:
            return
        kept = sum(
            (module.in_features + module.out_features) * module.weight.element_size()
            for module in lm.modules()
            if isinstance(module, nn.Linear) and any(p.requires_grad for p in module.parameters(recurse=False))
        )
        needed, free = kept * token_budget, least(_free_memory())
        checkpointing = getattr(lm, "is_gradient_checkpointing", False)
        self.passes = "two" if checkpointing or needed > free / 2 else "one"
        log.info(
            "gradnorm.passes=auto: %s pass(es); what %d tokens leave behind takes up to %.2f GiB of %.2f free%s",
            *(self.passes, token_budget, needed / 2**30, free / 2**30),
            ", activation checkpointing is on" if checkpointing else "",
        )


def _free_memory() -> float:
    """Bytes that a micro-batch may still take, on the GPU or in RAM."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _merged(packed: PackedBatch, group_size: int) -> tuple[Segments, Segments]:
    return packed.segments.merge(group_size), packed.target_segments.merge(group_size)


def _differentiate(function: Tensor) -> None:
    with no_autocast(function):
        function.backward()


def _weighted_sum(tokens: TokenScores, packed: PackedBatch, coefficients: Tensor) -> Tensor:
    return (coefficients.to(tokens.logprobs)[packed.target_segments.ids] * tokens.logprobs).sum()


def _joined(
    passes: Sequence[tuple[TokenScores, Tensor]], parts: Sequence[PackedBatch], backward: Callable[[Tensor], Tensor]
) -> SequenceScores:
    log_ratios = [
        packed.target_segments.sum(tokens.logprobs.detach().double() - packed.behaviour_logprobs)
        for (tokens, _), packed in zip(passes, parts, strict=True)
    ]
    return SequenceScores(
        torch.cat(log_ratios),
        torch.cat([weights for _, weights in passes]),
        torch.cat([tokens.entropy for tokens, _ in passes]),
        backward,
    )
