"""Accuracy with a confidence interval when each problem is tried several times."""

import math

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from oblr.metrics.aggregate import Interval


class ProblemAccuracy(Metric):
    """Mean score over problems, with a Wilson interval that counts problems, not tries.

    Tries at one problem are correlated, so the interval uses the effective sample size ``p(1−p)/Var(mean)``, the
    variance taken over the per-problem means (Korn & Graubard 1998). With one try a problem that is the number of
    problems, and the interval is Wilson's own; it holds near 0 and 1, where a normal interval does not.

    Update with scores in [0, 1], float [problems, tries], of all ranks: it gathers nothing itself.
    """

    full_state_update = False
    per_problem: list[Tensor]

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("per_problem", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor) -> None:
        self.per_problem.append(scores.double().mean(1))

    def compute(self) -> Interval:
        means = dim_zero_cat(self.per_problem)
        p, n = means.mean().item(), len(means)
        variance = means.var(correction=0).item() / n
        return wilson(p, p * (1 - p) / variance if variance > 0 else n)


def wilson(p: float, n: float, z: float = 1.959964) -> Interval:
    """Wilson's score interval of a proportion ``p`` seen in ``n`` independent trials."""
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(centre - half, 0.0), min(centre + half, 1.0))
