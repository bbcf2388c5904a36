"""Weights of the sequences in a micro-batch, and the weighted gradient, in as few passes as memory allows."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from oblr.errors import SettingError
from oblr.gradnorm import contractions
from oblr.gradnorm.capture import capture
from oblr.gradnorm.uses import LinearNorms
from oblr.packing import PackedBatch, Segments
from oblr.types import TokenScores

Tier = Literal["exact", "sketch", "logit", "length", "uniform"]
Passes = Literal["auto", "one", "two"]
Scorer = Callable[[PackedBatch], TokenScores]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SequenceScores:
    """One micro-batch, scored.

    Attributes:
        tokens: log-probabilities (detached) and more of each target.
        weights: ``n_i`` or what stands for it, float64 [S].
        backward: given coefficients ``c_i`` [S], adds ``Σ_i c_i ∇θ log π(o_i|q)`` to ``.grad`` and returns the squared
            norm of each group's part, float64 [groups]. Call it once, inside the context.
    """

    tokens: TokenScores
    weights: Tensor
    backward: Callable[[Tensor], Tensor]


class GradNorms:
    """Finds ``n_i = ‖∇θ log π(o_i|q)‖²`` of every sequence, or what stands for it.

    Args:
        tier: ``exact``; ``sketch``, an unbiased estimate from random projections; or without any norm ``logit``
            (``Σ_t 1 − 2π_t + Σ_v π_v²``, arXiv 2602.07078), ``length`` (response tokens), ``uniform`` (1). Whatever the
            weights, a leave-one-out baseline leaves the gradient unbiased; poorer ones cost variance.
        passes: ``one`` keeps every layer's output gradient until the coefficients are known; ``two`` computes forward
            and backward again; ``auto`` takes one pass where memory allows. Tiers without norms need one plain pass.
        probes: random projections per layer of ``sketch``.
        seed: of the projections.

    Raises:
        SettingError: unknown tier or passes, or no probe.
    """

    def __init__(self, tier: Tier = "exact", passes: Passes = "auto", probes: int = 8, seed: int = 0):
        for setting, value, options in (("tier", tier, Tier), ("passes", passes, Passes)):
            if value not in get_args(options):
                raise SettingError(f"gradnorm.{setting}", f"{value!r} is unknown", f"use one of {get_args(options)}")
        if probes < 1:
            raise SettingError("gradnorm.probes", f"{probes} is not a count", "use at least 1")
        self.tier, self.passes, self.probes, self.seed = tier, passes, probes, seed
        self.generator = torch.Generator()

    @property
    def measures(self) -> bool:
        """Whether the weights are squared norms, exact or estimated."""
        return self.tier in ("exact", "sketch")

    @contextmanager
    def score(
        self, scorer: Scorer, lm: nn.Module, packed: PackedBatch, group_size: int, step: int = 0
    ) -> Iterator[SequenceScores]:
        """Score the complete groups of a micro-batch; ``step`` varies the sketch's projections."""
        parent = torch.arange(packed.segments.count, device=packed.targets.device) // group_size
        if not self.measures:
            with capture(lm, packed.segments.merge(parent), packed.target_segments.merge(parent), "weights") as tape:
                tokens = scorer(packed)

                def backward(coefficients: Tensor) -> Tensor:
                    _weighted_sum(tokens, packed, coefficients).backward()
                    return tape.square_norms

                yield SequenceScores(_detached(tokens), self.proxy(tokens, packed), backward)
            return
        one = self.passes == "one"
        norms = self.linear_norms(step)
        with capture(lm, packed.segments, packed.target_segments, "record" if one else "norms", norms) as tape:
            tokens = scorer(packed)
            tokens.logprobs.sum().backward()
        if one:
            backward = partial(tape.accumulate, parent=parent)
        else:
            backward = partial(self.second_pass, scorer, lm, packed, parent)
        yield SequenceScores(_detached(tokens), tape.square_norms, backward)

    def second_pass(
        self, scorer: Scorer, lm: nn.Module, packed: PackedBatch, parent: Tensor, coefficients: Tensor
    ) -> Tensor:
        """A plain weighted forward and backward that sees the groups' parts go by."""
        with capture(lm, packed.segments.merge(parent), packed.target_segments.merge(parent), "weights") as tape:
            _weighted_sum(scorer(packed), packed, coefficients).backward()
        return tape.square_norms

    def linear_norms(self, step: int) -> LinearNorms:
        """Exact contraction, or a sketch whose projections depend on seed, step and the order of layers alone."""
        if self.tier == "exact":
            return contractions.linear_square_norms
        self.generator.manual_seed(hash((self.seed, step)) % 2**63)

        def sketch(a: Tensor, b: Tensor, segments: Segments) -> Tensor:
            signs = torch.randint(2, (max(a.shape[-1], b.shape[-1]), self.probes), generator=self.generator) * 2.0 - 1
            return contractions.linear_sketch(a, b, segments, signs.to(a.device))

        return sketch

    def proxy(self, tokens: TokenScores, packed: PackedBatch) -> Tensor:
        """The weights of the tiers that need no norms, float64 [S]."""
        if self.tier == "logit":
            per_token = 1 - 2 * tokens.logprobs.detach().exp() + tokens.collision
        else:
            per_token = torch.ones_like(tokens.collision)
        weights = packed.target_segments.sum(per_token.double())
        return torch.ones_like(weights) if self.tier == "uniform" else weights

    def choose_passes(self, lm: nn.Module, token_budget: int) -> None:
        """Settle ``passes=auto`` for micro-batches of ``token_budget`` tokens and log why."""
        if self.passes != "auto" or not self.measures:
            return
        kept = sum(
            module.out_features * module.weight.element_size()
            for module in lm.modules()
            if isinstance(module, nn.Linear) and any(p.requires_grad for p in module.parameters(recurse=False))
        )
        needed, free = kept * token_budget, _free_memory()
        checkpointing = getattr(lm, "is_gradient_checkpointing", False)
        self.passes = "two" if checkpointing or needed > free / 2 else "one"
        log.info(
            "gradnorm.passes=auto: %s pass(es); output gradients of %d tokens take %.2f GiB of %.2f free%s",
            *(self.passes, token_budget, needed / 2**30, free / 2**30),
            ", activation checkpointing is on" if checkpointing else "",
        )


def _free_memory() -> float:
    """Bytes that a micro-batch may still take, on the GPU or in RAM."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _weighted_sum(tokens: TokenScores, packed: PackedBatch, coefficients: Tensor) -> Tensor:
    return (coefficients.to(tokens.logprobs)[packed.target_segments.ids] * tokens.logprobs).sum()


def _detached(tokens: TokenScores) -> TokenScores:
    return tokens._replace(logprobs=tokens.logprobs.detach())
