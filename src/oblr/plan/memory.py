"""What each rank of a run holds, in training and in rollouts, and whether that fits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PretrainedConfig

from oblr.gradnorm.contractions import GRAM_ROWS
from oblr.gradnorm.passes import CONTEXT, GIB, Needs, room_of, total_memory
from oblr.plan.dry_run import Bytes, DryRun
from oblr.plan.duration import Duration, Serving, Usual, duration
from oblr.plan.roofline import Speed
from oblr.plan.update import Batch, Update, World, adapt, fake_model, plan_update
from oblr.policy.loading import checkpoint_blocks
from oblr.policy.settled import layout_of, settle
from oblr.policy.step import PolicyModule
from oblr.rollout.hf import HFEngine
from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine

#: They live where the shards do.
STATE = ("weights", "adapters", "gradients", "optimizer state")
#: Share of what comes and goes that the allocator loses in gaps. Not measured.
FRAGMENTATION = 0.05
#: What vLLM profiles itself with on large GPUs where it is not told: tokens of a forward pass, and sequences that are
#: sampled at once.
ENGINE_TOKENS, ENGINE_SEQUENCES = 16_384, 1024
#: Such sequences elsewhere, and bytes from which a GPU is large.
FEWER_SEQUENCES, LARGE = 256, 70 * GIB


@dataclass(frozen=True)
class Device:
    """What a rank has.

    Attributes:
        memory: bytes.
        gpu: or a share of the machine's own memory.
        offload: whether weights, gradients and optimizer state live in the machine's memory (FSDP2).
        bucketed: whether DDP has buckets for the gradients besides.
    """

    memory: float
    gpu: bool = True
    offload: bool = False
    bucketed: bool = False


@dataclass(frozen=True)
class Plan:
    """Predicted memory of a rank, and seconds of a step.

    Attributes:
        parameters: number of the policy's, adapters apart; a tied head is not counted twice.
        passes: what ``gradnorm.passes`` comes to.
        norms: whether the baseline is given squared norms.
        training, rollouts: bytes by kind on a rank's device when most are live.
        host: those in the machine's memory instead.
        kv_token: bytes of KV cache a token; 0 where the engine is elsewhere.
        update: see there.
        duration: of a step, predicted.
    """

    parameters: int
    passes: str
    norms: bool
    training: Bytes
    rollouts: Bytes
    host: Bytes
    kv_token: int
    update: Update
    duration: Duration
    world: World
    batch: Batch
    device: Device
    token_budget: int

    @property
    def kv_sequences(self) -> int:
        """How many of the longest sequences the KV cache holds at once."""
        return int(self.rollouts["KV cache"] / self.kv_token / self.batch.longest) if self.kv_token else 0

    @property
    def starved(self) -> bool:
        """Whether the engine's share holds its weights but no sequence."""
        return self.kv_token > 0 and self.kv_sequences == 0

    @property
    def lacking(self) -> float:
        """Bytes beyond what the device has; 0 where all fits."""
        over = sum(max(0.0, live.total() - self.device.memory) for live in (self.training, self.rollouts))
        return over + self.starved * self.kv_token * self.batch.longest

    @property
    def spare(self) -> float:
        """Bytes of the device that stay free when most are live; below 0 where it does not fit."""
        return self.device.memory - max(self.training.total(), self.rollouts.total())

    @property
    def micro_batches(self) -> int:
        """Of a step in which every group is live and every sequence longest."""
        tokens = self.batch.groups * self.batch.group_size * self.batch.longest
        return -(-tokens // self.token_budget)

    @property
    def moved(self) -> Bytes:
        """Bytes that a rank receives in such a step, by what for."""
        moved = Bytes({name: size * self.micro_batches for name, size in self.update.moved.items()})
        moved["weight sync"] = self.update.moved_by_sync.total()
        moved["all-reduce"] += self.update.reduced(self.world)
        return +moved


@dataclass
class Draft:
    """One rank of a run that is to be planned; nothing is loaded.

    Its time can be asked for alone: a run of the usual sequences tells it, memory takes one of the longest besides.

    Attributes:
        policy: as configured; it is used up.
        engine: as configured, not started.
        speed: of a rank's device.
        usual: the sequences that time is reckoned with; memory is with the longest.
        steps: of the run.
        ahead: steps whose rollouts are under way while the policy trains.
    """

    policy: PolicyModule
    config: PretrainedConfig
    world: World
    batch: Batch
    engine: object
    device: Device
    speed: Speed
    usual: Usual
    steps: int
    ahead: int = 0

    def __post_init__(self) -> None:
        policy, world = self.policy, self.world
        run = DryRun()
        lm = fake_model(run, self.config, policy.dtype_name)
        checkpoint_blocks(lm, world.checkpointing)
        self.parameters = sum(p.numel() for p in lm.parameters())
        adapt(lm, policy, world)
        longest = self.batch.longest
        found = engine_memory(self.engine, self.config, self.parameters, longest, self.device)
        self.engine_state, self.generating, self.kv_token = found
        shards, computed = (
            world.shards * world.sharded,
            torch.bfloat16 if world.mixed else getattr(torch, policy.dtype_name),
        )
        layout = layout_of(
            policy, computed, shards, self.device.bucketed, self.engine_state.total(), longest * self.batch.group_size
        )
        self.lm, self.needs = lm, Needs(lm, layout)
        settle(policy, self.needs, room_of(self.needs, self.device.memory))
        policy.gradnorm.gram_rows = max(GRAM_ROWS, longest)

    def update(self, batch: Batch) -> Update:
        return plan_update(self.policy, self.config, self.world, batch)

    @cached_property
    def timed(self) -> Update:
        return self.update(self.usual.of(self.batch))

    @cached_property
    def duration(self) -> Duration:
        cache, ranks = self.generating["KV cache"], self.world.ranks
        serving = engine_speed(
            *(self.engine, self.config, self.parameters, cache, self.kv_token, self.usual, self.device, ranks)
        )
        shared = self.device.gpu and getattr(self.engine, "shares_gpu", True)
        return duration(
            *(self.config, self.world, self.batch, self.usual, self.timed, self.policy.token_budget, serving),
            *(self.parameters, self.speed, self.steps, 0 if shared else self.ahead),
        )

    def plan(self) -> Plan:
        policy, world, batch, device = self.policy, self.world, self.batch, self.device
        lasting = self.duration
        update = self.timed if self.usual.of(batch) == batch else self.update(batch)
        norms = policy.baseline.needs_norms and policy.gradnorm.has_norms
        training, generation, sync = update.peak.copy(), update.resident + self.generating, update.sync.copy()
        sync += self.engine_state | Bytes({"engine weights": self.generating["engine weights"]})
        rollouts = max(generation, sync, key=lambda live: live.total())
        passing = sum(training[kind] for kind in ("activations", "logits", "in transit"))
        training["fragmentation"] = int(FRAGMENTATION * passing)
        host: Bytes = Bytes()
        for live in (training, rollouts):
            live["context"] = CONTEXT
            if device.bucketed:  # as large as what is trained, and there for good
                live["gradients"] += update.trained
            if device.offload:
                own = Bytes({kind: live.pop(kind, 0) for kind in STATE})
                host = max(host, own, key=lambda bytes_: bytes_.total())
        return Plan(
            self.parameters,
            policy.gradnorm.passes if norms else "one",
            norms,
            +(training + self.engine_state),
            +rollouts,
            host,
            self.kv_token,
            update,
            lasting,
            world,
            batch,
            device,
            policy.token_budget,
        )


def own_memory(ranks: int) -> float:
    """Bytes that this machine has for each of so many ranks."""
    return total_memory(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"), ranks)


def engine_memory(
    engine: object, config: PretrainedConfig, parameters: int, longest: int, device: Device
) -> tuple[Bytes, Bytes, int]:
    """Bytes by kind while training, and in rollouts; bytes of KV cache a token."""
    if isinstance(engine, ServerEngine) and engine.shares_gpu and device.gpu:  # rank 0's, which has least room
        share = Bytes({"server": int(engine.gpu_memory_utilization * device.memory)})
        return share, share, 0
    if not isinstance(engine, VLLMEngine | HFEngine):  # it has a memory of its own
        return Bytes(), Bytes(), 0
    itemsize = getattr(torch, engine.dtype).itemsize
    kv_token = _kv_token(config, itemsize)
    weights = parameters * itemsize
    if isinstance(engine, HFEngine):
        awake = Bytes({"engine weights": weights})
        return awake, awake + Bytes({"KV cache": engine.batch_size * longest * kv_token}), kv_token
    if not device.gpu:
        awake = Bytes({"engine weights": weights, "KV cache": engine.cpu_kv_cache_gib * GIB})
        return awake, awake, kv_token
    tokens, sequences = engine.max_num_batched_tokens or ENGINE_TOKENS, sampled_at_once(engine, device)
    workspace = max(tokens * 3 * config.intermediate_size * itemsize, sequences * config.vocab_size * 3 * 4)
    cache = max(0, int(engine.gpu_memory_utilization * device.memory) - weights - workspace)
    return Bytes(), Bytes({"engine weights": weights, "engine workspace": workspace, "KV cache": cache}), kv_token


def sampled_at_once(engine: object, device: Device) -> int:
    """Most sequences: as the engine is told, or as vLLM chooses."""
    if isinstance(engine, HFEngine):
        return engine.batch_size
    chosen = ENGINE_SEQUENCES if device.gpu and device.memory >= LARGE else FEWER_SEQUENCES
    return getattr(engine, "max_num_seqs", None) or chosen


def engine_speed(
    engine: object,
    config: PretrainedConfig,
    parameters: int,
    cache: float,
    kv_token: int,
    usual: Usual,
    device: Device,
    ranks: int,
) -> Serving:
    """How fast an engine samples; one elsewhere, which tells less, has room for what vLLM samples at once.

    A server that the run starts on GPUs of its own has a copy on each, or on each group of them; of one that runs
    already as many copies are reckoned with as there are ranks.
    """
    itemsize = getattr(torch, getattr(engine, "dtype", "bfloat16")).itemsize
    parallel = getattr(engine, "tensor_parallel_size", 1)
    copies = engine.copies if isinstance(engine, ServerEngine) and engine.own and not engine.shares_gpu else 0
    if not kv_token:
        kv_token = _kv_token(config, itemsize)
        cache = FEWER_SEQUENCES * usual.length * kv_token
    at_once = min(sampled_at_once(engine, device), int(cache / kv_token / usual.length))
    graphs = not getattr(engine, "enforce_eager", True)
    share = ranks / copies if copies else 1.0
    return Serving(
        parameters * itemsize / parallel, kv_token, max(1, at_once // parallel), graphs, share, copies * parallel
    )


def _kv_token(config: PretrainedConfig, itemsize: int) -> int:
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_size * itemsize


@dataclass(frozen=True)
class Change:
    """A change of settings, and the plan with it and all before it."""

    overrides: list[str]
    plan: Plan


def advise(plan: Plan, candidates: list[list[str]], replan: Callable[[list[str]], Plan]) -> list[Change]:
    """The first of ``candidates``, one after the other, that help; all that help where even these do not suffice."""
    changes: list[Change] = []
    for overrides in candidates:
        if plan.lacking == 0:
            break
        changed = replan([override for change in changes for override in change.overrides] + overrides)
        if changed.lacking < plan.lacking - 0.01 * plan.device.memory:
            changes.append(Change(overrides, changed))
            plan = changed
    return changes
