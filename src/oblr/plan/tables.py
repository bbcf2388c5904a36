"""A plan on the screen."""

from rich.table import Table

from oblr.plan.duration import Usual
from oblr.plan.memory import GIB, Change, Plan

#: kind → how the table calls it
ROWS = {
    "weights": "weights",
    "adapters": "adapters",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "reference model": "reference model",
    "activations": "activations",
    "logits": "logits, a slice of the vocabulary",
    "in transit": "whole weights and gradients in transit",
    "fragmentation": "fragmentation (5 % of what comes and goes)",
    "engine weights": "engine: weights",
    "engine workspace": "engine: workspace",
    "KV cache": "engine: KV cache",
    "server": "the server that shares the trainer's GPU",
    "context": "CUDA context and libraries",
}


def memory_table(plan: Plan, title: str) -> Table:
    columns = {"training": plan.training, "rollouts": plan.rollouts}
    if plan.host:
        columns["host"] = plan.host
    table = Table("GiB a rank", *columns, title=title)
    for kind, label in ROWS.items():
        if any(live[kind] for live in columns.values()):
            table.add_row(label, *(f"{live[kind] / GIB:.2f}" if live[kind] else "" for live in columns.values()))
    table.add_section()
    table.add_row("total", *(f"{live.total() / GIB:.2f}" for live in columns.values()))
    return table


def remarks(plan: Plan) -> list[str]:
    """Lines below the table."""
    world, batch = plan.world, plan.batch
    lines = [
        f"{plan.parameters / 1e9:.3f} billion parameters, {_count(world.ranks, 'rank')}"
        f"{', sharded' * world.sharded}{', bfloat16 products' * world.mixed}"
        f"{checkpointing(world.checkpointing)}, {plan.passes} pass{'es' * (plan.passes != 'one')}",
        f"a step: {batch.groups * batch.group_size} sequences a rank, in up to {plan.micro_batches} micro-batches "
        f"of {plan.token_budget} tokens",
    ]
    if batch.group_size * batch.longest > plan.token_budget:
        lines.append(
            f"groups of more than policy.token_budget={plan.token_budget} tokens are spread over micro-batches, which "
            "takes a whole float32 gradient; "
            f"none is from {batch.group_size * batch.longest} tokens on"
        )
    if plan.kv_token:
        lines.append(
            f"KV cache: {plan.kv_sequences} sequences of {batch.longest} tokens at once "
            f"({plan.kv_token / 2**10:.0f} KiB a token)"
        )
    if plan.moved:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in plan.moved.items())
        lines.append(f"received by each rank in a step, at most, GiB: {parts}")
    return lines


def checkpointing(every: int) -> str:
    blocks = f" of every {every}. block" if every > 1 else ""
    return f", activation checkpointing{blocks}" if every else ""


def time_table(plan: Plan) -> Table:
    duration = plan.duration
    table = Table("seconds a step", "", title=f"predicted, on {duration.processor}")
    for phase, seconds in duration.phases.items():
        table.add_row(phase, f"{seconds:.3g}")
    table.add_section()
    if duration.at_once:
        table.add_row("sampled while the policy trains", f"−{duration.at_once:.3g}")
    table.add_row("total", f"{duration.step:.3g}")
    return table


def speed_remarks(plan: Plan, usual: Usual) -> list[str]:
    duration = plan.duration
    hours = f"{_count_of(duration.hours)} {'GPU' if plan.device.gpu else 'CPU'}-hours"
    return [
        f"reckoned with prompts of {usual.prompt} and responses of {usual.response} tokens, "
        f"{100 * usual.live:.0f} % of the groups live (planned.prompt, planned.response, planned.live)",
        *_refills(usual),
        f"predicted: {duration.tokens / duration.step:,.0f} response tokens a second, {hours} for "
        f"{duration.steps} steps, MFU of the update {100 * duration.mfu:.0f} %",
    ]


def _refills(usual: Usual) -> list[str]:
    if not usual.refill:
        return []
    said = "no refill is counted, as all groups are taken for live (planned.live)"
    if usual.live < 1:
        said = (
            f"{sum(usual.sampled):.3g} times the prompts of a step are sampled, and {100 * usual.trained:.0f} % of the "
            "groups are live then"
        )
    return [f"rollout.refill={usual.refill}: {said}"]


def fastest(plan: Plan, best: Change | None) -> str:
    """Which change, of one setting or of some together, makes a step shortest, and the memory that stays free then."""
    if best is None:
        return "predicted: no other checkpointing, passes, token budget or engine that fits saves time"
    return (
        f"predicted: {' '.join(best.overrides)} saves most time, {plan.duration.step:.3g} → "
        f"{best.plan.duration.step:.3g} s a step, with {best.plan.spare / GIB:.1f} GiB to spare"
    )


def _count_of(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def verdict(plan: Plan) -> str:
    memory = f"{plan.device.memory / GIB:.3g} GiB"
    if plan.lacking == 0:
        return f"fits: {max(plan.training.total(), plan.rollouts.total()) / GIB:.3g} of {memory}"
    if plan.starved:
        return f"does not fit: the engine's share of {memory} holds no sequence of {plan.batch.longest} tokens"
    name, live = max(("training", plan.training), ("rollouts", plan.rollouts), key=lambda column: column[1].total())
    return f"does not fit: in {name} {live.total() / GIB:.3g} of {memory}"


def advice(plan: Plan, changes: list[Change]) -> list[str]:
    lines = []
    for change in changes:
        after = change.plan
        lines.append(
            f"{' '.join(change.overrides)}   training {plan.training.total() / GIB:.1f} → "
            f"{after.training.total() / GIB:.1f}, rollouts {plan.rollouts.total() / GIB:.1f} → "
            f"{after.rollouts.total() / GIB:.1f} GiB"
        )
        plan = after
    return lines


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
