"""Other prompts in place of those whose responses are all paid alike: DAPO's dynamic sampling (arXiv 2503.14476).

A group that agrees has no gradient under a baseline of its own group, so each place is that of a prompt drawn anew
until one has: the mean gradient keeps its direction, and is ``Σ_r d^r`` times as long, r = 0 … ``rollout.refill``, if a
share d agrees.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from oblr.batch.types import RolloutBatch
from oblr.rollout.drawing import Drawn
from oblr.run.ranks import of_run


class Others(NamedTuple):
    """Problems that take the place of those whose groups agree.

    Attributes:
        places: of such groups on this rank.
        replaced: such groups on all ranks.
        drawn: a problem for each place.
    """

    places: list[int]
    replaced: int
    drawn: Drawn


def others(batch: RolloutBatch, draw: Callable[[Sequence[int], int], Drawn]) -> Others | None:
    """Problems in place of those whose groups agree; None where no group of any rank does. Collective.

    Args:
        draw: gives this rank's of the next problems, of which the ranks have so many each, and before which so many
            have been drawn in place of others.
    """
    places = batch.agreeing
    counts = of_run().objects(len(places))
    return Others(places, sum(counts), draw(counts, batch.refilled or 0)) if any(counts) else None
