"""Baselines as functions of arrays, and what each would have made of a step."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups, second_moment
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.statistics.log import StepRecord

#: Two that are unbiased and give groups of equal rewards nothing: the others' mean reward, and the paper's.
UNBIASED: Mapping[str, Baseline] = {"rloo": RLOOBaseline(), "gradient_weighted": GradientWeightedBaseline()}


def advantages(
    baseline: Baseline, rewards: Tensor, square_norms: Tensor | None = None, lengths: Tensor | None = None
) -> Tensor:
    """``A_i = R_i − b_i`` of complete groups, float32 [N, G].

    Args:
        baseline: any of :mod:`oblr.baselines` but those of tokens, and those that want a greedy response.
        rewards: [N, G].
        square_norms: ``n_i`` [N, G], which gradient-weighted baselines weigh rewards with; None: all alike.
        lengths: response tokens [N, G]; None: one each.
    """
    return baseline(_groups(rewards, square_norms, lengths))


def second_moments(record: StepRecord, baselines: Mapping[str, Baseline] = UNBIASED) -> dict[str, float]:
    """``1/(NG) Σ (R_i − b_i)² n_i`` of a step under each baseline: for unbiased ones the variance but for a constant.

    Needs a reward and ``square_norm`` of each response, and groups of one size; else all have NaN. Where a norm is not
    known, as in groups of equal rewards, only baselines that give such groups no advantage have a number.
    """
    by_group: dict[int, list[int]] = {}
    for i, response in enumerate(record.responses):
        by_group.setdefault(response.group, []).append(i)
    if len({*map(len, by_group.values())}) > 1:
        return dict.fromkeys(baselines, math.nan)
    order = [i for q in sorted(by_group) for i in by_group[q]]
    shape = len(by_group), -1

    def column(name: str) -> Tensor:
        values = [getattr(record.responses[i], name) for i in order]
        return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64).view(shape)

    rewards, norms, lengths = column("reward"), column("square_norm"), column("length").nan_to_num(1).long()
    groups = _groups(rewards, norms, lengths)
    found = {name: second_moment(baseline, groups) for name, baseline in baselines.items()}
    return {name: math.nan if moment is None else moment for name, moment in found.items()}


def _groups(rewards: Tensor, square_norms: Tensor | None, lengths: Tensor | None) -> Groups:
    norms = torch.ones_like(rewards) if square_norms is None else square_norms
    sizes = torch.ones_like(rewards).long() if lengths is None else lengths
    return Groups(rewards.float(), norms.double(), sizes, rewards.float(), step_weights=norms.double())
