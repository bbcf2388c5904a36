"""A former baseline, whose settings go on working for a release; a run says what to write now."""

from collections.abc import Sequence

from oblr.baselines.gradient_weighted import PSEUDO_COUNTS, GradientWeightedBaseline, renamed
from oblr.kinds import Decay, NonNegative


def AdaptiveBaseline(pseudo_counts: Sequence[NonNegative] = (0.0,), decay: Decay = 0.9) -> GradientWeightedBaseline:
    """The gradient-weighted baseline with a prior from earlier steps, whose memory begins anew in a resumed run.

    Args:
        pseudo_counts: values of ``K`` to choose from, less 0; without another, those of ``gradient_weighted``.
        decay: what the prior keeps of an earlier step.
    """
    positive = [count for count in pseudo_counts if count] or PSEUDO_COUNTS
    new = GradientWeightedBaseline(prior="past", pseudo_counts=positive, decay=decay)
    return renamed(new, "baseline=adaptive", "baseline.prior=past")
