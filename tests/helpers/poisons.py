"""What must not reach a policy: rollouts with a number in them that is none, or is too much for a gradient."""

import math
from collections.abc import Callable
from dataclasses import replace

from lightning import Callback

from oblr.batch.types import Rollout, RolloutBatch


def worth(reward: float) -> Callable[[Rollout], Rollout]:
    return lambda rollout: replace(rollout, reward=reward)


def likelier(nats: float) -> Callable[[Rollout], Rollout]:
    """The engine says that the response was so much less likely: its ratio is ``e^nats`` times as large."""

    def spoil(rollout: Rollout) -> Rollout:
        first, *others = rollout.completion.logprobs
        return replace(rollout, completion=replace(rollout.completion, logprobs=[first - nats, *others]))

    return spoil


#: by what the refusal says of the response
POISONS = {
    "reward is nan": worth(math.nan),
    "reward is inf": worth(math.inf),
    "reward is -inf": worth(-1e39),  # beyond float32
    "log π − log μ is nan": likelier(math.nan),
    "log π − log μ is inf": likelier(math.inf),
    "log π − log μ is -inf": likelier(-math.inf),
    "gradient overflows": likelier(50.0),
    "gradient overflows (M1 = nan)": likelier(100.0),
    "weight in the baseline is inf": likelier(400.0),
}


def spoilt(batch: RolloutBatch, response: int, spoil: Callable[[Rollout], Rollout]) -> RolloutBatch:
    """``batch`` with one of its responses spoilt."""
    rollouts = list(batch.rollouts)
    rollouts[response] = spoil(rollouts[response])
    return RolloutBatch(rollouts, batch.group_size, batch.weight_version, batch.greedy_rewards)


class Poison(Callback):
    """Spoils a response of every step from a given one on, as `callbacks` of a run's settings."""

    def __init__(self, start: int):
        self.start = start

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch >= self.start:
            batch.rollouts[:] = spoilt(batch, -1, POISONS["log π − log μ is nan"]).rollouts
