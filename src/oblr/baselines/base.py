"""What a baseline is."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from oblr.batch.types import ResponseTokens, StepStatistics

#: An advantage that is rounding.
NOTHING = 1e-6


@dataclass(frozen=True)
class Groups:
    """Complete groups, and what is known of the whole step before any pass.

    Attributes:
        rewards: float32 [n, G].
        reward_weights: squared norms of what the advantages multiply, ``ρ_i² n_i`` with the paper's loss, float64
            [n, G]; meaningless unless the baseline ``needs_norms``.
        lengths: response tokens, int64 [n, G].
        step_rewards: of all groups of the step, on all ranks, float32 [N, G].
        greedy_rewards: of a greedy response to each prompt, float32 [n]; None unless the baseline ``needs_greedy``.
        tokens: of the responses, group by group; None but for baselines that are ``per_token``.
        problems: digests that tell problems apart, int64 [n]; always there in a run.
        step_weights: ``weights`` of all groups of the step, on all ranks, float64 [N, G]; None unless the baseline
            ``needs_step_weights``.
    """

    rewards: Tensor
    reward_weights: Tensor
    lengths: Tensor
    step_rewards: Tensor
    greedy_rewards: Tensor | None = None
    tokens: ResponseTokens | None = None
    problems: Tensor | None = None
    step_weights: Tensor | None = None

    def of(self, rows: Tensor, tokens: ResponseTokens | None = None) -> "Groups":
        """Some of the groups, by index or mask."""
        greedy, problems = (
            column if column is None else column[rows] for column in (self.greedy_rewards, self.problems)
        )
        of_responses = (self.rewards[rows], self.reward_weights[rows], self.lengths[rows])
        return Groups(*of_responses, self.step_rewards, greedy, tokens, problems, self.step_weights)


def all_groups(stats: StepStatistics) -> Groups:
    """Those of a finished step, of all ranks."""
    of_responses = (stats.rewards, stats.reward_weights, stats.lengths, stats.rewards)
    return Groups(*of_responses, stats.greedy_rewards, problems=stats.problems, step_weights=stats.reward_weights)


class Baseline(ABC):
    """Turns the rewards of complete groups into advantages ``A_i = R_i − b_i``.

    Attributes:
        needs_norms: whether ``reward_weights`` matter; where they do not, the step saves the norm pass.
        needs_step_weights: whether those of the whole step are to be known before any advantage, in a pass of
            its own.
        needs_greedy: whether a greedy response to every prompt is to be sampled as well.
        leave_one_out: whether it needs at least two responses per prompt.
        per_token: whether advantages differ between the tokens of a response.
        warning: what whoever starts a run with it is to be told.
    """

    needs_norms: bool = False
    needs_step_weights: bool = False
    needs_greedy: ClassVar[bool] = False
    leave_one_out: ClassVar[bool] = False
    per_token: ClassVar[bool] = False
    warning: str = ""

    @property
    def words(self) -> str:
        """What is taken from a response's reward, in words, for the header of a report."""
        return type(self).__name__

    @abstractmethod
    def __call__(self, groups: Groups) -> Tensor:
        """Advantages, float32 [n, G]; of every token of ``groups.tokens``, in their order, if ``per_token``."""

    def live(self, groups: Groups) -> Tensor:
        """bool [n]: the groups that can have advantages at all, as far as that is known before any pass."""
        return live_groups(groups.rewards)

    def study(self, groups: Groups) -> None:
        """Look at a micro-batch of this rank, after its advantages have been taken; for :meth:`learn`."""

    def learn(self, groups: Groups, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        """Make use of a finished step, for later ones.

        Args:
            groups: those whose rewards' weights are known, of all ranks.
            reduce: adds a tensor up over the ranks.
        """

    def forget(self) -> None:
        """The step is refused: what was studied of it is not to be learnt."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def second_moment(baseline: Baseline, step: Groups) -> float | None:
    """``1/(NG) Σ (R_i − b_i)² w_i`` over all groups of a step, with the rewards' weights ``w``, some of them NaN.

    Where these are not known, the advantages must be 0; None where the baseline gives such a group one.
    """
    known = step.reward_weights.isfinite().all(1)
    if not known.any() or not known[baseline.live(step)].all():
        return None
    groups = step.of(known)
    energies = baseline(groups).double().square() * groups.reward_weights
    return energies.sum().item() / step.reward_weights.numel()


def live_groups(rewards: Tensor) -> Tensor:
    """bool [N]: groups whose rewards are not all equal; others have no advantage under a baseline of the group."""
    return (rewards != rewards[:, :1]).any(1)


def others_mean(groups: Groups) -> Tensor:
    """Mean reward of the step's other groups, float64 [n, 1]; that of the group itself where it is the only one."""
    total, count = groups.step_rewards.double().sum(), groups.step_rewards.numel()
    own = groups.rewards.double().sum(1, keepdim=True)
    size = groups.rewards.shape[1]
    return own / size if count == size else (total - own) / (count - size)


def batch_live(groups: Groups) -> Tensor:
    """bool [n]: all groups, unless no reward of the step differs from another."""
    step = groups.step_rewards
    return torch.full((len(groups.rewards),), bool((step != step.flatten()[0]).any()))


def live_though_equal(baseline: Baseline) -> Tensor:
    """Whether groups whose rewards are all 0, all 1, and all 0 take part in their step, bool [3]."""
    groups = _drawn(3, 2, 0)
    rewards = torch.tensor([0.0, 1.0, 0.0])[:, None].expand(3, 2)
    return baseline.live(replace(groups, rewards=rewards, step_rewards=rewards))


def ever_moves(baseline: Baseline, prompts: int, size: int) -> bool:
    """Whether ``prompts`` groups of ``size`` unequal rewards have an advantage, at a first step or at the one after.

    The baseline itself learns nothing of it.
    """
    tried = copy.deepcopy(baseline)
    for seed in range(2):
        groups = _drawn(prompts, size, seed)
        if tried.live(groups).any() and (tried(groups).abs() > NOTHING).any():
            return True
        tried.study(groups)
        tried.learn(groups)
    return False


def _drawn(prompts: int, size: int, seed: int) -> Groups:
    """Responses of one token."""
    generator = torch.Generator().manual_seed(seed)
    rewards, weights, energy = (0.5 + torch.rand(3, prompts, size, generator=generator).double()).unbind()
    count = prompts * size
    tokens = ResponseTokens(
        logs=torch.zeros(count, dtype=torch.float64),
        energy=energy.flatten(),
        sequences=torch.arange(count),
        behaviour=-energy.flatten(),
        lengths=torch.ones(count, dtype=torch.long),
        group_size=size,
        hidden=torch.ones(count, 1),
    )
    lengths, greedy = torch.ones(prompts, size, dtype=torch.long), torch.zeros(prompts)
    problems = torch.arange(prompts)
    return Groups(rewards.float(), weights, lengths, rewards.float(), greedy, tokens, problems, weights)
