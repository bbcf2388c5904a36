"""How long a step takes, phase by phase: predicted, from counted work and a processor's speed.

The update is counted. Rollouts are told by what a token of the batch has to read: all weights, and the sequences' keys
and values. Left out: rewards, which are scored beside, evaluation, loading, and sequences that wait for the longest.
"""

from dataclasses import dataclass, replace

from transformers import PretrainedConfig

from oblr.plan.dry_run import Bytes
from oblr.plan.roofline import Speed, model_flops, predict
from oblr.plan.update import Batch, Update, World
from oblr.policy.step import CHECKED, CHECKED_TOKENS

#: The engine's own time for a forward pass, and for each sequence in it, in operations of this process: scheduling,
#: sampling, and what comes out, in Python. Measured with vLLM 0.32 on a CPU.
ENGINE_PASS, ENGINE_SEQUENCE = 180, 6
#: … and for a parameter that a sync replaces.
ENGINE_PARAMETER = 45
#: Kernels of a transformer block in an engine without CUDA graphs; with them a pass is one launch.
ENGINE_KERNELS = 12


@dataclass(frozen=True)
class Usual:
    """The sequences that time is reckoned with.

    Attributes:
        prompt, response: tokens.
        live: share of the groups whose rewards differ, so that they take part in the update.
        refill: times that others take the place of those whose rewards agree.
    """

    prompt: int
    response: int
    live: float = 1.0
    refill: int = 0

    @property
    def length(self) -> int:
        return self.prompt + self.response

    @property
    def sampled(self) -> list[float]:
        """Groups that are sampled one time after the other, of each that a step has."""
        return [(1 - self.live) ** times for times in range(self.refill + 1)]

    @property
    def trained(self) -> float:
        """Share of the groups that take part in the update after all refills."""
        return 1 - (1 - self.live) ** (self.refill + 1)

    def of(self, batch: Batch) -> Batch:
        return Batch(max(1, round(batch.groups * self.trained)), batch.group_size, self.length, self.response)


@dataclass(frozen=True)
class Serving:
    """An engine beside a rank.

    Attributes:
        weights, kv_token: bytes on a rank.
        sequences: that it decodes at once.
        graphs: whether CUDA graphs replay a pass.
        ranks: whose prompts it samples.
        devices: of all engines that are not the trainer's own.
    """

    weights: float
    kv_token: float
    sequences: int
    graphs: bool = False
    ranks: float = 1.0
    devices: int = 0


@dataclass(frozen=True)
class Duration:
    """Predicted seconds of a step.

    Attributes:
        phases: seconds of a step.
        parts: seconds of the update by its own phases, as far as the host keeps up.
        eager: seconds that the engine takes for want of CUDA graphs.
        tokens: response tokens of a step, of all ranks.
        mfu: of the update.
        devices: of trainer and engines.  steps: of the run.
        processor: its name.
        at_once: seconds in which the engine samples while the policy trains.
    """

    phases: dict[str, float]
    parts: dict[str, float]
    eager: float
    tokens: int
    mfu: float
    devices: int
    steps: int
    processor: str
    at_once: float = 0.0

    @property
    def step(self) -> float:
        return sum(self.phases.values()) - self.at_once

    @property
    def hours(self) -> float:
        """Of all devices, for the whole run."""
        return self.step * self.steps * self.devices / 3600


def duration(
    config: PretrainedConfig,
    world: World,
    batch: Batch,
    usual: Usual,
    update: Update,
    token_budget: int,
    serving: Serving,
    parameters: int,
    speed: Speed,
    steps: int,
    ahead: int = 0,
) -> Duration:
    """The duration of a step, from what an update of it was counted to do.

    Args:
        batch: all groups of the rank.
        update: of ``usual.of(batch)``.
        parameters: numbers in the policy.
        ahead: steps before a batch is due, in which the engine samples it while the policy trains.
    """
    live = usual.of(batch)
    lengths = next(iter(live.split(token_budget)), live.full(token_budget))
    micro_batches = max(1.0, live.groups * live.group_size * usual.length / sum(lengths))
    work, once = predict(update.work, speed), predict(update.once, speed)
    of_copies = update.moved["all-reduce"]
    travelling = speed.travelling(update.moved.total() - of_copies, of_copies)
    updating = micro_batches * max(work.seconds, travelling)
    updating += speed.travelling(update.reduced(world))
    optimizer = once.phases["optimizer"]
    checked = min(CHECKED * usual.length, max(CHECKED_TOKENS, usual.length))
    check = predict(update.work.of("forward"), speed).seconds * checked / sum(lengths)
    targets = [min(usual.response, length - 1) for length in lengths]
    flops = micro_batches * model_flops(config, lengths, sum(targets), update.resident["adapters"] > 0)
    generating = rollouts(config, batch, usual, serving, parameters, speed)
    replayed = rollouts(config, batch, usual, replace(serving, graphs=True), parameters, speed)
    phases = {
        **generating,
        "sync": syncing(config, update.moved_by_sync, serving, speed),
        "check": check,
        "update": updating + max(0.0, once.seconds - optimizer),
        "optimizer": optimizer,
    }
    tokens = batch.groups * batch.group_size * usual.response * world.ranks
    parts = {phase: seconds * micro_batches for phase, seconds in work.phases.items()}
    eager = generating["decode"] - replayed["decode"]
    mfu, devices = flops / phases["update"] / speed.peak, world.ranks + serving.devices
    at_once = 0.0
    if ahead:  # places are filled once a step, and after that when the batch is due
        beside = rollouts(
            config, batch, replace(usual, refill=min(usual.refill, ahead - 1)), serving, parameters, speed
        )
        at_once = min(sum(beside.values()), phases["update"] + optimizer)
    return Duration(phases, parts, eager, tokens, mfu, devices, steps, speed.name, at_once)


def rollouts(
    config: PretrainedConfig, batch: Batch, usual: Usual, serving: Serving, parameters: int, speed: Speed
) -> dict[str, float]:
    """Seconds of prefill, where responses to a prompt share its keys and values, and of decoding."""
    prefill = decoding = 0.0
    for share in usual.sampled:
        groups = batch.groups * serving.ranks * share
        sequences = groups * batch.group_size
        at_once = max(1, min(sequences, serving.sequences))
        passes = usual.response * sequences / at_once
        kept = at_once * (usual.prompt + usual.response / 2)
        decoding += passes * engine_pass(config, serving, parameters, speed, at_once, at_once, kept)
        prefill += 2 * parameters * groups * usual.prompt / (speed.peak * speed.products)
    return {"prefill": prefill, "decode": decoding}


def engine_pass(
    config: PretrainedConfig,
    serving: Serving,
    parameters: int,
    speed: Speed,
    sequences: float,
    tokens: float,
    kept: float,
) -> float:
    """Seconds of a forward pass of the engine.

    Args:
        sequences: that have a part in it.
        tokens: computed in it: one of each sequence, and all of a prompt.
        kept: tokens whose keys and values are read.
    """
    reading = (serving.weights + kept * serving.kv_token) / (speed.streams * speed.bandwidth)
    computing = 2 * parameters * tokens / (speed.peak * speed.products)
    launching = speed.launch * (1 if serving.graphs else config.num_hidden_layers * ENGINE_KERNELS)
    own = speed.launch * (ENGINE_PASS + ENGINE_SEQUENCE * sequences)
    if speed.serial:
        return max(reading, computing) + own + launching
    return max(reading, computing, launching) + own


def syncing(config: PretrainedConfig, moved: Bytes, serving: Serving, speed: Speed) -> float:
    """Weights are gathered where they are sharded, rounded, copied, and taken one by one."""
    gathering, copying = speed.travelling(moved.total()), 4 * serving.weights / (speed.streams * speed.bandwidth)
    return gathering + copying + speed.launch * ENGINE_PARAMETER * (11 * config.num_hidden_layers + 3)
