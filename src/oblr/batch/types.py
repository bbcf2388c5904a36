"""What travels between the rooms, and the legend of the symbols that name tensor shapes everywhere else.

    N  prompts per step          B = N·G  sequences           V  vocabulary
    G  responses per prompt      T        tokens              D  hidden size

A *group* is the G responses to one prompt; a batch lists its sequences group by group.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, NamedTuple, get_origin, get_type_hints

import torch
from torch import Tensor

from oblr.problem import Completion, Problem


@dataclass(frozen=True)
class Sampling:
    """How an engine samples: ``n`` responses per prompt; ``temperature`` 0 is greedy; ``end_ids`` end a response.

    The others leave tokens out, for evaluation alone: log-probabilities are then no longer those of what was sampled
    from. ``top_p`` keeps the likeliest tokens that together have this probability, ``top_k`` so many of them (0: all),
    ``min_p`` those that have this share of the likeliest one's probability. Before a string of ``stop`` a response ends
    as well: who asked for it cuts it there (:func:`oblr.data.ends.stopped`).
    """

    n: int
    temperature: float
    max_new_tokens: int
    end_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rollout:
    """A scored response of the behaviour policy; ``outcome`` is ``scored``, or why it has no reward of its own.

    ``reward_parts`` add up to ``reward``; empty where it is one number.
    """

    problem: Problem
    prompt_ids: list[int]
    completion: Completion
    text: str
    reward: float
    outcome: str = "scored"
    reward_parts: dict[str, float] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion.token_ids)

    def of_version(self, version: int) -> "Rollout":
        """With all its tokens of these weights, if they do not say of which they are."""
        versions = self.completion.versions or ((version, len(self.completion.token_ids)),)
        return replace(self, completion=replace(self.completion, versions=versions))


@dataclass(frozen=True)
class RolloutBatch:
    """All rollouts of one step, group by group: ``rollouts[q * group_size + i]`` is response ``i`` to prompt ``q``.

    Attributes:
        weight_version: of the weights that sampled them; of the oldest, where newer ones came into their midst.
        greedy_rewards: of a greedy response to each prompt, float32 [N]; None where none was sampled.
        age: steps that the policy has taken since it had these weights.
        token_age: likewise, mean over the tokens of all ranks, where these are of several weights; else None.
        probe: responses of the policy as it is now, where the rollouts are not; nothing is learnt from them.
        beside: seconds that its sampling, and then its scoring, took while the policy trained on others, by phase.
        unpaid: problems that no response can be paid for.
        refilled: groups of all ranks whose place others have taken; None where none may.
    """

    rollouts: list[Rollout]
    group_size: int
    weight_version: int
    greedy_rewards: Tensor | None = None
    age: int = 0
    token_age: float | None = None
    probe: list[Rollout] = field(default_factory=list)
    beside: Mapping[str, float] = field(default_factory=dict)
    unpaid: int = 0
    refilled: int | None = None

    @property
    def n_groups(self) -> int:
        return len(self.rollouts) // self.group_size

    @property
    def agreeing(self) -> list[int]:
        """The groups whose rewards are all equal."""
        return (self.rewards == self.rewards[:, :1]).all(1).nonzero()[:, 0].tolist()

    def refilled_with(self, others: "RolloutBatch", groups: Sequence[int], count: int) -> "RolloutBatch":
        """With those of another batch in place of these groups, which are ``count`` on all ranks."""
        rollouts, greedy = list(self.rollouts), self.greedy_rewards
        if others.weight_version != self.weight_version:
            others = replace(others, rollouts=[one.of_version(others.weight_version) for one in others.rollouts])
        for place, q in enumerate(groups):
            rollouts[q * self.group_size : (q + 1) * self.group_size] = others.group(place)
        if greedy is not None and others.greedy_rewards is not None:
            greedy = greedy.index_copy(0, torch.tensor(groups, dtype=torch.int64), others.greedy_rewards)
        return replace(
            self,
            rollouts=rollouts,
            greedy_rewards=greedy,
            beside={phase: seconds + others.beside.get(phase, 0.0) for phase, seconds in self.beside.items()},
            unpaid=self.unpaid + others.unpaid,
            refilled=(self.refilled or 0) + count,
        )

    @property
    def fresh(self) -> list[Rollout]:
        """Responses of the policy as it is now."""
        return self.probe if self.age else self.rollouts

    @cached_property
    def rewards(self) -> Tensor:
        """float32 [N, G]."""
        return torch.tensor([r.reward for r in self.rollouts], dtype=torch.float32).view(-1, self.group_size)

    @cached_property
    def lengths(self) -> Tensor:
        """Response tokens, int64 [N, G]."""
        return torch.tensor([len(r.completion.token_ids) for r in self.rollouts]).view(-1, self.group_size)

    @cached_property
    def finished(self) -> Tensor:
        """Whether a response ended before the token limit, float32 [N, G]."""
        return torch.tensor([r.completion.finished for r in self.rollouts]).float().view(-1, self.group_size)

    @cached_property
    def problems(self) -> Tensor:
        """A digest of each group's problem's id, 48 bits, int64 [N]."""
        ids = (self.group(q)[0].problem.id.encode() for q in range(self.n_groups))
        return torch.tensor([int.from_bytes(hashlib.blake2b(name, digest_size=6).digest()) for name in ids])

    def group(self, q: int) -> list[Rollout]:
        return self.rollouts[q * self.group_size : (q + 1) * self.group_size]


class TokenStatistics(NamedTuple):
    """Statistics of each target token under the policy, float32 [n]; only ``logprobs`` is differentiable.

    Attributes:
        logprobs: log-probability of the token.
        entropy: of the distribution it was drawn from, in nats.
        collision: ``Σ_v π_v²`` of that distribution.
        hidden: what the head made it of, [n, D].
    """

    logprobs: Tensor
    entropy: Tensor
    collision: Tensor
    hidden: Tensor

    @property
    def energy(self) -> Tensor:
        """``1 − 2π + Σ_v π_v²``: squared norm of the gradient of ``log π`` with respect to the logits, float64 [n]."""
        return (1 - 2 * self.logprobs.detach().double().exp() + self.collision).clamp(min=0)


@dataclass(frozen=True)
class ResponseTokens:
    """What policy and behaviour policy say of the response tokens of complete groups.

    Attributes:
        logs: ``log π(o_t|q, o_<t) − log μ(o_t|q, o_<t)`` of every response token, float64 [n].
        energy: squared norm of the gradient of ``log π(o_t|q, o_<t)`` with respect to the logits,
            ``1 − 2π(o_t) + Σ_v π(v)²``, float64 [n].
        sequences: index of the token's response, int64 [n]; tokens come in the order of their responses.
        behaviour: ``log μ(o_i|q)``, summed over tokens, float64 [S].
        lengths: response tokens, at least one, int64 [S].
        group_size: G; responses come group by group, S = groups · G.
        hidden: what the policy's head sees where it predicts the token, [n, D].
    """

    logs: Tensor
    energy: Tensor
    sequences: Tensor
    behaviour: Tensor
    lengths: Tensor
    group_size: int
    hidden: Tensor | None = None

    @cached_property
    def sequence_logs(self) -> Tensor:
        """``log π(o_i|q) − log μ(o_i|q)``, float64 [S]."""
        return self.sums(self.logs)

    @cached_property
    def present(self) -> Tensor:
        """Whether a response has a token at a position, bool [S, T] with the length T of the longest."""
        return torch.arange(int(self.lengths.max()), device=self.lengths.device) < self.lengths[:, None]

    def by_position(self, values: Tensor) -> Tensor:
        """``values`` of tokens [n] response by response, 0 beyond its end, [S, T]; ``[present]`` undoes it."""
        return values.new_zeros(self.present.shape).masked_scatter(self.present, values)

    def sums(self, values: Tensor) -> Tensor:
        """Sums of tokens' ``values`` [n] over each response, float64 [S]."""
        return torch.zeros_like(self.behaviour).index_add_(0, self.sequences, values.to(self.behaviour))

    def spread(self, values: Tensor) -> Tensor:
        """``values`` of the responses [S] given to each of their tokens [n]; those of tokens stay as they are."""
        return values if len(values) == len(self.logs) else values[self.sequences]

    def means(self, values: Tensor) -> Tensor:
        """The mean of ``values`` over the tokens of each response [S]; those of responses stay as they are."""
        return self.sums(self.spread(values)) / self.lengths


@dataclass(frozen=True)
class Moments:
    """Second moments of one step's group gradients ``g_q``, and what follows from them.

    Attributes:
        n_groups: N, dead groups included (their ``g_q`` is 0).
        mean_square: ``M1 = ‖(1/N) Σ_q g_q‖²``.
        square_mean: ``M2 = (1/N) Σ_q ‖g_q‖²``.
        fresh: share of the responses that counts as if all were of the policy as it is.
    """

    n_groups: int
    mean_square: float
    square_mean: float
    fresh: float = 1.0

    @property
    def finite(self) -> bool:
        return math.isfinite(self.mean_square) and math.isfinite(self.square_mean)

    @property
    def noise(self) -> float:
        """``tr H = N/(N−1) · (M2 − M1)``: trace of the covariance of one group's gradient, unbiased. NaN if N = 1."""
        if self.n_groups < 2:
            return float("nan")
        return self.n_groups / (self.n_groups - 1) * max(self.square_mean - self.mean_square, 0.0)

    @property
    def debiased_signal(self) -> float:
        """``max(M1 − tr H/N, 0)``, an estimate of ``‖∇J‖²`` that is unbiased before the max."""
        return max(self.mean_square - self.noise / self.n_groups, 0.0)

    @property
    def snr_plug_in(self) -> float:
        """``M1 / tr H``; 0 where there is no gradient at all, inf where every group agrees."""
        return _ratio(self.mean_square, self.noise)

    @property
    def snr_debiased(self) -> float:
        """``max(M1 − tr H/N, 0) / tr H``."""
        return _ratio(self.debiased_signal, self.noise)

    @property
    def noise_scale(self) -> float:
        """``B_noise = 1/SNR`` in groups (McCandlish et al. 2018, arXiv 1812.06162), from the debiased signal."""
        return _ratio(1.0, self.snr_debiased) if self.snr_debiased else float("inf")


def _ratio(signal: float, noise: float) -> float:
    if noise == 0:
        return float("inf") if signal > 0 else 0.0
    return signal / noise


class LogprobGap(NamedTuple):
    """|log π − log μ| of tokens of rollouts with fresh weights, in nats: mean, 99 % quantile and maximum."""

    mean: float
    p99: float
    max: float


class Column(NamedTuple):
    """A number of each response, or of each group, that a step finds. What is declared of it is followed everywhere.

    It goes by its name from the step to the statistics of all ranks, whose groups follow each other in it, to the rows
    of ``rollouts/``, and to the tables of ``report.html`` and ``docs/tags.md``.

    Attributes:
        meaning: what it is, with its unit.
        key: what a row of ``rollouts/`` calls it; empty where no row has it.
        title: what a report's table calls it; empty where none shows it.
        dtype: of all ranks' column.
        of_group: whether the responses of a group have it in common.
        missing: what it is in groups that it was not found of.
    """

    meaning: str
    key: str = ""
    title: str = ""
    dtype: torch.dtype = torch.float64
    of_group: bool = False
    missing: float = math.nan


@dataclass
class StepStatistics:
    """Everything one step measured, on all ranks, for callbacks to show. Tensors are on the CPU.

    Each :class:`Column` is [N, G], or [N] if it is of groups.

    Attributes:
        batch: this rank's rollouts; the ranks' groups follow each other in the order of the ranks.
        first: index of its first group.
        logprob_gap: of the sequences that were checked after the sync, by the rank with the largest of each.
        moments: of the group gradients.
        greedy_rewards: float32 [N], see :class:`RolloutBatch`.
        lr: ``η_t``; 0 where the step was refused.
        refused: whether nothing has moved, since something that the step found is no number, or its rollouts too old.
    """

    batch: RolloutBatch
    first: int
    logprob_gap: LogprobGap
    moments: Moments
    scores: Annotated[
        Tensor, Column("what the response was given, before any penalty", "reward", "reward", dtype=torch.float32)
    ]
    rewards: Annotated[
        Tensor,
        Column(
            "what the baseline was given, a penalty that shapes rewards included",
            "shaped_reward",
            dtype=torch.float32,
        ),
    ]
    advantages: Annotated[
        Tensor,
        Column(
            "reward less baseline: above 0 the response becomes likelier; a mean over the tokens where theirs differ",
            *("advantage", "advantage"),
            dtype=torch.float32,
            missing=0.0,
        ),
    ]
    reward_weights: Annotated[Tensor, Column("what the baseline weighs the reward with", "weight", "weight")]
    square_norms: Annotated[
        Tensor,
        Column(
            "squared norm of ∇ log π(o|q); of Σ f_t ∇ log π_t where the loss has factors f of tokens",
            *("square_norm", "squared gradient norm"),
        ),
    ]
    lengths: Annotated[Tensor, Column("length of the response, in tokens", "tokens", "tokens", dtype=torch.int64)]
    finished: Annotated[Tensor, Column("1 where it ended before the token limit", dtype=torch.float32)]
    coefficients: Annotated[Tensor, Column("mean size of its tokens' coefficients in g_q", missing=0.0)]
    log_ratios: Annotated[Tensor, Column("log π(o|q) − log μ(o|q), nats")]
    entropies: Annotated[Tensor, Column("of the distributions that its tokens were drawn from, in all, nats")]
    live: Annotated[
        Tensor, Column("whether its group took part in the update", "live", dtype=torch.bool, of_group=True)
    ]
    group_squares: Annotated[Tensor, Column("‖g_q‖² of its group", "group_square", of_group=True, missing=0.0)]
    problems: Annotated[
        Tensor, Column("digest of the problem's id, see RolloutBatch", dtype=torch.int64, of_group=True)
    ]
    greedy_rewards: Tensor | None = None
    lr: float = 0.0
    refused: bool = False

    @property
    def ratios(self) -> Tensor:
        """Importance ratios ``ρ_i = π(o_i|q)/μ(o_i|q)``, float64 [N, G]; inf where the logarithm exceeds 709."""
        return self.log_ratios.exp()

    @property
    def effective_sample_size(self) -> float:
        """``(Σρ)²/(S Σρ²)`` over the S responses of live groups: 1 where all ratios are the same; NaN without any."""
        logs = self.log_ratios[self.live].flatten()
        return (2 * logs.logsumexp(0) - (2 * logs).logsumexp(0)).exp().item() / max(len(logs), 1)

    @property
    def growth(self) -> float:
        """``Σ ρ²n / Σ ρn`` over the responses of live groups: what the ratios make of the gradients' second moment.

        Weighed once less, responses of an older policy stand for the policy's own, so the denominator is that of fresh
        ones. Rewards have no part in it, so it may decide what is learnt from. 1/ESS where norms are not known.
        """
        known = self.live[:, None] & self.log_ratios.isfinite() & (self.square_norms > 0)  # NaN is not
        if not known.any():
            return 1 / self.effective_sample_size
        logs, sizes = self.log_ratios[known], self.square_norms[known].double().log()
        return ((2 * logs + sizes).logsumexp(0) - (logs + sizes).logsumexp(0)).exp().item()

    @property
    def entropy(self) -> float:
        """Mean entropy in nats of the next-token distribution over the tokens of live groups; NaN without any."""
        return (self.entropies[self.live].sum() / self.lengths[self.live].sum()).item()


#: By the field's name.
COLUMNS: dict[str, Column] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(StepStatistics, include_extras=True).items()
    if get_origin(hint) is Annotated
}
