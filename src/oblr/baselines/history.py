"""A former baseline, whose settings go on working for a release; a run says what to write now."""

from oblr.baselines.gradient_weighted import GradientWeightedBaseline, renamed
from oblr.kinds import Share


def HistoryBaseline(discount: Share = 0.75, weighted: bool = True) -> GradientWeightedBaseline:
    """The gradient-weighted baseline with a prior from the prompt's earlier visits.

    Args:
        discount: what of an earlier visit to a prompt counts, with each one since.
        weighted: whether weights are squared gradient norms; else they are all alike.
    """
    new = GradientWeightedBaseline(prior="history", pseudo_counts=[1.0], decay=discount)
    new.needs_norms = weighted
    settings = f"baseline.prior=history baseline.decay={discount:g} baseline.pseudo_counts=[1]"
    return renamed(new, "baseline=history", settings if weighted else f"{settings} gradnorm=uniform")
