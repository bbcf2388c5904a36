"""Passes, checkpointing and token budget, taken together: how long a step would take with each, reckoned from one plan.

They share the memory: what a block's checkpoint saves may be another pass's, or more tokens'. So which is fastest shows
only where all are tried, and a dry run of each takes half a minute. These figures say which are worth one.
"""

from collections import Counter
from dataclasses import dataclass

from oblr.gradnorm.passes import EITHER, Needs, Passes, choose, room_of
from oblr.plan.memory import Draft, Plan
from oblr.policy.loading import checkpoint_blocks

#: Of which blocks activations are checkpointed: of every so many-th; 0: of none. Beyond, what is saved is little.
EVERY = (0, 1, 2, 3, 4)
#: Token budgets, over the configured one.
BUDGETS = (0.25, 0.5, 0.75, 1, 1.5, 2, 4)


@dataclass(frozen=True)
class Pair:
    """A pass count with a token budget, and what a step takes with it.

    Attributes:
        passes, every, tokens: passes, blocks between checkpoints, token budget.
        seconds: of a step.
    """

    passes: Passes
    every: int
    tokens: int
    seconds: float


def pairs(draft: Draft, plan: Plan) -> list[Pair]:
    """All that have room by :mod:`oblr.gradnorm.passes`, the fastest first."""
    found, lm = [], draft.lm
    passes: tuple[Passes, ...] = EITHER if plan.norms else ("two",)  # without norms a plain pass is all
    for every in EVERY:
        lm.gradient_checkpointing_disable()
        checkpoint_blocks(lm, every)
        needs = Needs(lm, draft.needs.layout)
        room = room_of(needs, draft.device.memory)
        for share in BUDGETS:
            tokens = int(share * plan.token_budget)
            chosen, _ = choose(needs, passes, (tokens,), room)
            if needs.of_tokens(chosen, tokens) <= room:
                found.append(Pair(chosen, every, tokens, seconds(draft, plan, chosen, every, tokens)))
    lm.gradient_checkpointing_disable()
    checkpoint_blocks(lm, plan.world.checkpointing)
    return sorted(found, key=lambda pair: pair.seconds)


def seconds(draft: Draft, plan: Plan, passes: Passes, every: int, tokens: int) -> float:
    """Of a step, by the parts of the planned one: each pass again as long, and the host's time by micro-batch."""
    layers, usual, parts = draft.config.num_hidden_layers, draft.usual, Counter(plan.duration.parts)

    def times(passes: str, tokens: int) -> int:
        cut = plan.batch.group_size * usual.length > tokens
        return 2 if cut or (plan.norms and passes == "two") else 1

    def again(every: int) -> float:
        return -(-layers // every) / layers if every else 0.0

    before, now = times(plan.passes, plan.token_budget), times(passes, tokens)
    checkpointed = again(plan.world.checkpointing)
    recomputed = parts["recomputation"] / before / checkpointed if checkpointed else parts["forward"] / before
    a_pass = (parts["forward"] + parts["backward"]) / before
    rest = sum(parts.values()) - before * (a_pass + recomputed * checkpointed)
    waiting = max(0.0, plan.duration.phases["update"] - sum(parts.values()))
    update = now * (a_pass + recomputed * again(every)) + rest + waiting * plan.token_budget / tokens
    return plan.duration.step - plan.duration.phases["update"] + update
