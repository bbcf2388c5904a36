"""A policy's update and weight sync as one rank of any world would run them, by a dry run of the very code.

Transformer blocks are alike, so a few of them and one more tell how much each further one takes: between coming to
one parameter and coming to the next, the most that is live is linear in their number. Where only every n-th is
checkpointed, groups of n blocks are alike: then a few groups tell, and one more.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from oblr.batch.packing import pack, partition
from oblr.batch.segments import cut
from oblr.batch.types import Rollout
from oblr.gradnorm.head import SLICE
from oblr.plan.dry_run import Bytes, DryRun, Visit, fake_world, shapes_in_transit
from oblr.plan.liger import stand_in_for_liger
from oblr.plan.phases import Alone, micro_batches, phases
from oblr.plan.placement import DEVICE, as_on_gpu
from oblr.plan.work import Work
from oblr.policy.attention import SDPA, choose_attention
from oblr.policy.fused import fuse_torch
from oblr.policy.loading import checkpoint_blocks
from oblr.policy.model import PolicyModel
from oblr.policy.reference import Reference
from oblr.policy.step import PolicyModule
from oblr.problem import Completion, Problem

#: Blocks at the start and at the end of a model that may differ from those between: the backward pass begins at the
#: end, and FSDP2 works ahead by two.
EDGES, SHARDED_EDGES = (1, 2), (2, 3)


@dataclass(frozen=True)
class World:
    """Where a policy is trained.

    Attributes:
        ranks: devices.
        sharded: whether FSDP2 shares the policy out between them.
        replicas: copies of the policy that are shared out, where it is sharded.
        mixed: bfloat16 products of weights that are kept in ``policy.dtype``.
        checkpointing: of the activations of every so many-th block; 0: of none.
        gpu: whether operations take a GPU's ways; optimizers then handle all parameters at once.
    """

    ranks: int = 1
    sharded: bool = False
    replicas: int = 1
    mixed: bool = False
    checkpointing: int = 0
    gpu: bool = True

    @property
    def shards(self) -> int:
        """Ranks that share a copy of the policy out, if it is sharded."""
        return self.ranks // self.replicas


@dataclass(frozen=True)
class Batch:
    """The rollouts of a rank's step: groups of ``group_size`` sequences of up to ``longest`` tokens, prompts included.

    Attributes:
        groups: how many the rank has.
        response: most tokens of a response.
    """

    groups: int
    group_size: int
    longest: int
    response: int

    def full(self, token_budget: int) -> list[int]:
        """Lengths of the sequences of one micro-batch, of whole groups."""
        count = min(self.groups, -(-token_budget // (self.group_size * self.longest))) * self.group_size
        return [min(self.longest, token_budget // count)] * count

    def split(self, token_budget: int) -> list[list[int]]:
        """Those of two parts of a group too large for one, which show what all take; empty if there is none."""
        group = [self.longest] * self.group_size
        ((_, n_parts),) = partition([group], [True], token_budget, lambda counts: counts)
        return [list(part) for part in cut(group, n_parts)[:2]] if n_parts > 1 else []

    def rollouts(self, lengths: Sequence[int]) -> list[Rollout]:
        answers = [min(self.response, length - 1) for length in lengths]
        return [
            Rollout(
                *(Problem("", "", ""), [0] * (length - answer), Completion([0] * answer, [0.0] * answer, True)),
                *("", i % 2),  # so that every group is live
            )
            for i, (length, answer) in enumerate(zip(lengths, answers, strict=True))
        ]


@dataclass(frozen=True)
class Update:
    """Bytes by kind on one rank, bytes that it receives by collective, and what it computes.

    Attributes:
        peak: when most are live in an update.
        resident: between updates.
        sync: when most are live while all weights are handed out, whole, one by one.
        moved: in one micro-batch.
        moved_by_sync: in one sync.
        work: of one micro-batch; of a part of a group where groups are too large for one.
        once: of an update besides its micro-batches.
    """

    peak: Bytes
    resident: Bytes
    sync: Bytes
    moved: Bytes
    moved_by_sync: Bytes
    work: Work
    once: Work

    @property
    def trained(self) -> int:
        """Bytes of what has gradients: of adapters, where the policy has some."""
        return self.resident["adapters"] or self.resident["weights"]

    def reduced(self, world: World) -> int:
        """Bytes of gradients that a rank receives where they are summed in a ring, not by shards."""
        return 0 if world.sharded else 2 * self.trained * (world.ranks - 1) // world.ranks


@dataclass(frozen=True)
class _Run:
    update: dict[Visit, Bytes]
    resident: Bytes
    sync: dict[Visit, Bytes]
    moved: Bytes
    moved_by_sync: Bytes
    work: Work
    once: Work


def fake_model(run: DryRun, config: PretrainedConfig, dtype: str, attention: str = SDPA) -> PreTrainedModel:
    """The causal LM without numbers, as :func:`oblr.policy.loading.load_model` would load it."""
    config = copy.deepcopy(config)
    config.attention_dropout = 0.0
    with run.fake:
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)
    return model.train()


def adapt(lm: PreTrainedModel, policy: PolicyModule, world: World) -> None:
    """Give ``lm`` the adapters that ``policy`` trains, if it does."""
    if policy.lora is not None:
        policy.lora.attach(lm, world.mixed)


def plan_update(policy: PolicyModule, config: PretrainedConfig, world: World, batch: Batch) -> Update:
    """``policy``'s passes must be settled."""
    layers, alike = config.num_hidden_layers, max(1, world.checkpointing)
    first, last = SHARDED_EDGES if world.sharded else EDGES
    edges = first + alike - 1, last + alike - 1
    few = sum(edges) + (layers - sum(edges)) % alike  # the last blocks are the last of as large a group
    if layers <= few + alike:
        run = _dry_run(policy, config, world, batch)
        peaks = _peak(run.update), run.resident, _peak(run.sync)
        return Update(*peaks, run.moved, run.moved_by_sync, run.work, run.once)
    less, more = (_dry_run(policy, _shortened(config, n), world, batch) for n in (few, few + alike))

    groups = (layers - few) // alike

    def further(a: Bytes, b: Bytes) -> Bytes:
        return Bytes({kind: a[kind] + (b[kind] - a[kind]) * groups for kind in a | b})

    def all_layers(a: Work, b: Work) -> Work:
        return a + (b - a) * groups

    def furthest(a: dict[Visit, Bytes], b: dict[Visit, Bytes]) -> Bytes:
        near, far = _visits(a, few, edges), _visits(b, few + alike, edges)
        return _peak({visit: further(near[visit], far[visit]) for visit in near.keys() & far.keys()})

    return Update(
        furthest(less.update, more.update),
        further(less.resident, more.resident),
        furthest(less.sync, more.sync),
        further(less.moved, more.moved),
        further(less.moved_by_sync, more.moved_by_sync),
        all_layers(less.work, more.work),
        all_layers(less.once, more.once),
    )


def _peak(peaks: dict[Any, Bytes]) -> Bytes:
    return max(peaks.values(), key=lambda live: live.total())


def _shortened(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    return config


def _visits(peaks: dict[Visit, Bytes], layers: int, edges: tuple[int, int]) -> dict[Any, Bytes]:
    """Blocks by their distance from the nearer end."""
    placed = {}
    for (name, visit), live in peaks.items():
        parts = name.split(".")
        index = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if index is None:
            placed[name, visit] = live
            continue
        first, last = int(parts[index]), int(parts[index]) - layers
        if first < edges[0] or last >= -edges[1]:
            distance = f"{first if first < edges[0] else last:+d}"
            placed[".".join([*parts[:index], distance, *parts[index + 1 :]]), visit] = live
    return placed


def _dry_run(policy: PolicyModule, config: PretrainedConfig, world: World, batch: Batch) -> _Run:
    run = DryRun()
    policy.to(DEVICE)
    with fake_world(world.shards, world.replicas) as mesh, ExitStack() as ways:
        model = _model(run, policy, config, world, mesh, ways, adapted=True)
        policy.scorer = model
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        run.adopt("adapters" if policy.lora else "weights", parameters.items())
        run.adopt("weights", model.named_parameters())
        run.shapes = shapes_in_transit(model.lm)
        policy.reference = None
        if policy.kl is not None:
            reference = _model(run, policy, config, world, mesh, ways, adapted=False)
            run.adopt("reference model", ((f"reference.{name}", p) for name, p in reference.named_parameters()))
            policy.reference = Reference(reference, policy.kl)
        with run, torch.autocast("cpu", torch.bfloat16) if world.mixed else nullcontext():
            with run.making("gradients"):
                gradients = {f"gradient of {name}": torch.zeros_like(p) for name, p in parameters.items()}
            run.adopt("gradients", gradients.items())
            for p, gradient in zip(parameters.values(), gradients.values(), strict=True):
                p.grad = gradient
            optimizer = policy.make_optimizer(parameters.values())
            for group in optimizer.param_groups:
                if "foreach" in group:
                    group["foreach"] = world.gpu
            with run.making("optimizer state"):
                optimizer.step()
            run.restart()
            trainer = Alone(world.ranks, "bf16-mixed" if world.mixed else "32-true")
            policy.trainer = trainer  # type: ignore[assignment]
            policy.__dict__["optimizers"] = lambda: optimizer
            optimizer.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
            with phases(run, model.lm, model, optimizer), as_on_gpu() if world.gpu else nullcontext():
                work, moved, once = _updates(run, policy, batch)
            for p in parameters.values():  # as the policy does after its step, here after two
                p.grad = None
            del gradients, gradient, p
            update, resident = run.peaks, run.live.copy()
            run.restart()
            for _ in model.weights(torch.bfloat16 if world.mixed else None):
                pass
        del policy.scorer, policy.reference, policy.__dict__["optimizers"]
        policy.trainer = None
    return _Run(update, resident, run.peaks, moved, run.moved, work, once)


def _model(
    run: DryRun,
    policy: PolicyModule,
    config: PretrainedConfig,
    world: World,
    mesh: DeviceMesh,
    ways: ExitStack,
    adapted: bool,
) -> PolicyModel:
    computed = torch.bfloat16 if world.mixed else getattr(torch, policy.dtype_name)
    chosen = choose_attention(config, world.gpu, computed)
    attention = chosen if policy.attention == "auto" else policy.attention
    lm = fake_model(run, config, policy.dtype_name, attention)
    if world.gpu:
        fuse_torch(lm)
        ways.enter_context(stand_in_for_liger(lm))
    if adapted:
        adapt(lm, policy, world)
    model = PolicyModel(lm, policy.temperature)
    checkpoint_blocks(model.lm, world.checkpointing)
    if world.sharded:
        model.shard(mesh, torch.bfloat16 if world.mixed else None)
    return model


def _updates(run: DryRun, policy: PolicyModule, batch: Batch) -> tuple[Work, Bytes, Work]:
    """The policy's own update, of full micro-batches and of groups too large for one, where there are any."""
    budget, parts, full = policy.token_budget, batch.split(policy.token_budget), batch.full(policy.token_budget)
    try:
        policy.token_budget = sum(full)
        work, moved, once = _update(run, policy, batch, [full], batch.group_size, times=1 if parts else 2)
    finally:
        policy.token_budget = budget
    if parts:
        work, moved, once = _update(run, policy, batch, parts, sum(map(len, parts)), times=1)
        work, moved = work * 0.5, Bytes({name: size // 2 for name, size in moved.items()})
    return work, moved, once


def _update(
    run: DryRun, policy: PolicyModule, batch: Batch, parts: list[list[int]], group_size: int, times: int
) -> tuple[Work, Bytes, Work]:
    vocabulary = policy.scorer.lm.get_output_embeddings().out_features
    for lengths in parts:
        n = len(pack(batch.rollouts(lengths)).targets)
        widths = {vocabulary, width := min(vocabulary, max(1, SLICE // n)), vocabulary % width}
        run.shapes |= {(n, width): "logits" for width in widths}
    rollouts = batch.rollouts([length for lengths in parts for length in lengths])
    return micro_batches(run, policy, rollouts, group_size, times)
