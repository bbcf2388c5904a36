"""Other prompts in place of those whose responses are all paid alike: DAPO's dynamic sampling (arXiv 2503.14476)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from oblr.batch.types import RolloutBatch
from oblr.rollout.drawing import Drawn
from oblr.run.ranks import of_run


def refilled(
    batch: RolloutBatch,
    times: int,
    position: int,
    draw: Callable[[int, Sequence[int], int], Drawn],
    sample: Callable[[Drawn], RolloutBatch],
) -> tuple[RolloutBatch, int]:
    """A batch whose groups that agree are replaced, and those that agree again, and the position after all. Collective.

    A group that agrees has no gradient under a baseline of its own group, so each place is that of a prompt drawn anew
    until one has: the mean gradient keeps its direction, and is ``Σ_r d^r`` times as long, r = 0 … ``times``, if a
    share d agrees.

    Args:
        times: how often groups are replaced, at most.
        position: of the next training problem.
        draw: gives this rank's of the problems from a position on, of which the ranks have so many each, and before
            which so many have been drawn in place of others.
        sample: makes a batch of what is drawn.
    """
    replaced = 0
    for _ in range(times):
        agreeing = batch.agreeing
        counts = of_run().objects(len(agreeing))
        if not any(counts):
            break
        drawn = draw(position, counts, replaced)
        batch, position = batch.refilled_with(sample(drawn), agreeing), drawn.end
        replaced += sum(counts)
    return replace(batch, refilled=replaced), position
