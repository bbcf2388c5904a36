"""The mean reward of problems that are each tried several times, and its confidence interval: accuracy or not."""

import functools
import math

import mpmath
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from oblr.metrics.aggregate import Interval

#: What a held-out figure is called: by the end of its tag, which :func:`figure` gives.
NAMES = {"accuracy": "held-out accuracy", "reward": "held-out mean reward"}


def figure(graded: bool) -> str:
    """The end of a held-out figure's tag: a mean of rewards is an accuracy where each of them was 0 or 1."""
    return "reward" if graded else "accuracy"


class ProblemAccuracy(Metric):
    """Mean reward over problems, with an interval that counts problems, not tries.

    Where all rewards are 0 or 1 the mean is an accuracy and the interval Wilson's. Tries at one problem are correlated,
    so it uses the effective sample size ``p(1−p)/Var(mean)``, the variance taken over the per-problem means (Korn &
    Graubard 1998). With one try a problem that is the number of problems, and the interval is Wilson's own; it holds
    near 0 and 1, where a normal interval does not.

    Where any other reward is among them, they may have any range, and the interval is Student's over the per-problem
    means. One problem has none: its ends are NaN.

    Update with rewards, float [problems, tries], of all ranks: it gathers nothing itself.
    """

    full_state_update = False
    per_problem: list[Tensor]
    graded: Tensor

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("per_problem", default=[], dist_reduce_fx="cat")
        self.add_state("graded", default=torch.tensor(False), dist_reduce_fx="max")

    def update(self, scores: Tensor) -> None:
        self.graded |= ((scores != 0) & (scores != 1)).any()
        self.per_problem.append(scores.double().mean(1))

    def compute(self) -> Interval:
        means = dim_zero_cat(self.per_problem)
        p, n = means.mean().item(), len(means)
        if self.graded:
            return student(p, math.nan if n < 2 else means.std().item(), n)
        variance = means.var(correction=0).item() / n
        return wilson(p, p * (1 - p) / variance if variance > 0 else n)


def wilson(p: float, n: float, z: float = 1.959964) -> Interval:
    """Wilson's score interval of a proportion ``p`` seen in ``n`` independent trials."""
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(centre - half, 0.0), min(centre + half, 1.0))


def student(mean: float, deviation: float, n: int) -> Interval:
    """Student's 95 % interval of the mean of ``n`` independent values with this sample standard deviation."""
    half = quantile(n - 1) * deviation / math.sqrt(n) if n > 1 else math.nan
    return Interval(mean, mean - half, mean + half)


@functools.cache
def quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: where the regularised incomplete beta function leaves 5 % to both tails."""

    def tails(t: mpmath.mpf) -> mpmath.mpf:
        return mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True) - 0.05

    return float(mpmath.findroot(tails, (1.9, 13.0), solver="anderson"))
