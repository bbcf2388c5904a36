"""Settings of before ``gradient_weighted`` had a prior. They go on working, and a run says what to write now."""

from collections.abc import Sequence

from oblr.baselines.base import Baseline
from oblr.baselines.gradient_weighted import PSEUDO_COUNTS, GradientWeightedBaseline
from oblr.baselines.shrinkage import ShrinkageBaseline
from oblr.kinds import Decay, NonNegative, Share


def adaptive(pseudo_counts: Sequence[NonNegative] = (0.0,), decay: Decay = 0.9) -> Baseline:
    """The gradient-weighted baseline with a prior from earlier steps.

    Args:
        pseudo_counts: values of ``K`` to choose from, less 0; without another, those of ``gradient_weighted``.
        decay: what the prior keeps of an earlier step.
    """
    positive = [count for count in pseudo_counts if count] or PSEUDO_COUNTS
    new = GradientWeightedBaseline(prior="past", pseudo_counts=positive, decay=decay)
    return _renamed(new, "baseline=adaptive", "baseline.prior=past")


def history(discount: Share = 0.75, weighted: bool = True) -> Baseline:
    """The gradient-weighted baseline with a prior from the prompt's earlier visits.

    Args:
        discount: what of an earlier visit to a prompt counts, with each one since.
        weighted: whether weights are squared score norms; else they are all alike.
    """
    new = GradientWeightedBaseline(prior="history", pseudo_counts=[1.0], decay=discount)
    new.needs_norms = weighted
    settings = f"baseline.prior=history baseline.decay={discount:g} baseline.pseudo_counts=[1]"
    return _renamed(new, "baseline=history", settings if weighted else f"{settings} gradnorm=uniform")


def shrinkage(weighted: bool = False) -> Baseline:
    """James-Stein shrinkage of the plain mean; that of the weighted one is a prior from the step's other groups.

    Args:
        weighted: whether weights are squared score norms; else they are all alike.
    """
    if not weighted:
        return ShrinkageBaseline()
    return _renamed(GradientWeightedBaseline(prior="step"), "baseline.weighted=true", "baseline.prior=step")


def _renamed(new: Baseline, old: str, settings: str) -> Baseline:
    new.warning = f"{old} is called baseline=gradient_weighted {settings} now; the old name goes with the next release"
    return new
