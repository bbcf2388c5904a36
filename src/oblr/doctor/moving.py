"""Illnesses of the steps: one response moves the policy, they overshoot, or the policy has nothing left to explore."""

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

from oblr.doctor.findings import Finding, by_group, called, percent, quoted, rewards
from oblr.doctor.measures import Z, mean, share, unusual
from oblr.statistics.log import Response, StepRecord

#: Robust deviations of log (η ‖ĝ‖)² by which a step is long.
LONG = 4.0
#: Share of the step's length that one response has where it is called the cause.
CAUSE = 0.8
#: Effective responses of a group, below which one has all the weight.
ALONE = 1.1
#: What is left of the entropy where sampling hardly explores.
COLLAPSED = 0.1
#: Steps in which an average is taken, and in a row that a failure takes.
WINDOW = 10


def one_response(steps: Sequence[StepRecord]) -> Finding | None:
    """A step was long because of one response.

    Long is a step whose movement ``log (η ‖ĝ‖)²`` lies 4 robust deviations above the median of the steps before it, at
    least eight; so one that clipping or a schedule has shortened is not.
    The cause is a response whose own part is at least 80 % of the step's length: ``‖g_i‖·cos(g_i, ĝ)`` where the
    angle is known, ``‖g_i‖`` otherwise.
    """
    far = unusual([moved(step) for step in steps])
    found = []
    for step, z in zip(steps, far, strict=True):
        if z < LONG or len(step.responses) < 8:
            continue
        whole = math.sqrt(step.gradient_square)
        parts = [
            math.sqrt(one.gradient_square or 0.0) * (1.0 if one.alignment is None else one.alignment)
            for one in step.responses
        ]
        place = max(range(len(parts)), key=parts.__getitem__)
        if parts[place] >= CAUSE * whole:
            found.append((z, step, place, parts[place] / whole))
    if not found:
        return None
    z, step, place, held = max(found, key=lambda one: one[0])
    one = step.responses[place]
    given = [other.reward for other in step.responses if other.group == one.group]
    norms = [other.square_norm for other in step.responses if other.group == one.group and other.square_norm]
    why = []
    if one.square_norm and norms:
        why.append(f"its squared norm n is {one.square_norm / median(norms):.3g} × its group's median")
    if one.reward is not None and given.count(one.reward) == 1:
        why.append(f"its reward {one.reward:g} the only such")
    if one.peak is not None and one.peak_share:
        name = "" if one.peak_text is None else f" {quoted(one.peak_text)}"
        why.append(f"token {one.peak}{name} has {percent(one.peak_share)} of its pull on the logits")
    layers = sorted(step.layers.items(), key=lambda item: -item[1])[:2]
    if layers:
        why.append("most of the gradient lies in " + " and ".join(f"{name} ({percent(of)})" for name, of in layers))
    return Finding(
        "one_response",
        "illness",
        f"The gradient of step {step.step} was long because of {called(step, place)}: {quoted(one.text)}.",
        "; ".join(
            [f"its part is {percent(min(held, 1))} of the step's length, {z:.1f} robust deviations too long", *why]
        ),
        "almost certain",
        "schedule=linear_clipped shortens such steps",
        f"max_grad_norm={_usual(steps):.2g}, the median length so far",
        step.step,
        place,
    )


def moved(step: StepRecord) -> float:
    """``(η ‖ĝ‖)²`` after clipping; of an unknown rate as if it were 1."""
    rate = 1.0 if step.learning_rate is None else step.learning_rate
    return (rate * (1.0 if step.clipped is None else step.clipped)) ** 2 * step.gradient_square


def _usual(steps: Sequence[StepRecord]) -> float:
    return math.sqrt(median(step.gradient_square for step in steps))


def broke(steps: Sequence[StepRecord]) -> int | None:
    """The place of the step after which the policy could no longer what it could before; None where there is none.

    Each of the five steps that follow has less than half the mean reward of the five steps before, counted from the
    least. Together they lie four standard errors over prompts below it; two, where not a tenth of it is left.
    """
    given = rewards(steps)
    if len(steps) < WINDOW or not given or max(given) == min(given):
        return None
    least = min(given)
    prompts = [[fmean(known) - least for one in by_group(step) if (known := rewards_of(one))] for step in steps]
    if not all(prompts):
        return None
    means = [fmean(of) for of in prompts]
    for place in range(1, len(steps) - 5):
        before, after = fmean(means[max(0, place - 4) : place + 1]), means[place + 1 : place + 6]
        own = [value for of in prompts[max(0, place - 4) : place + 1] for value in of]
        error = (mean(own).high - mean(own).value) / Z
        errors = 2 if fmean(after) < 0.1 * before else 4
        if max(after) < 0.5 * before and before - fmean(after) > errors * error:
            return place
    return None


def lost(steps: Sequence[StepRecord]) -> int | None:
    """The place of the step by which the policy had lost half of what it could, bit by bit; None where it has not.

    The mean reward of ten steps around it is below half that of an earlier ten, which share no step with them, counted
    from the least, by the ends of both 95 % intervals.
    """
    given = rewards(steps)
    means = [fmean(known) - min(given) for step in steps if (known := rewards([step]))]
    if len(means) < len(steps):
        return None
    tens = [mean(means[first : first + WINDOW]) for first in range(len(means) - WINDOW + 1)]
    best = accumulate((one.low for one in tens), max)
    fallen = (
        first for first, (now, then) in enumerate(zip(tens[WINDOW:], best, strict=False), WINDOW) if now.high < then / 2
    )
    return next((first + WINDOW // 2 for first in fallen), None)


def rewards_of(group: Sequence[Response]) -> list[float]:
    return [one.reward for one in group if one.reward is not None]


def policy_broke(steps: Sequence[StepRecord]) -> Finding | None:
    """The policy has forgotten in one step what it could (:func:`broke`), and no test says why."""
    place = broke(steps)
    if place is None:
        return None
    before, after = fmean(rewards(steps[max(0, place - 4) : place + 1])), fmean(rewards(steps[place + 1 : place + 6]))
    return Finding(
        "policy_broke",
        "illness",
        f"The policy broke in step {steps[place].step}: it could not do afterwards what it had done before.",
        f"the mean reward is {after:.2g} in the five steps after it, and was {before:.2g} in those before",
        "almost certain",
        "schedule=linear_clipped, or a smaller eta0",
        f"max_grad_norm={_usual(steps[: place + 1]):.2g}",
        steps[place].step,
    )


def solved(steps: Sequence[StepRecord]) -> bool:
    """Whether the mean reward of the last ten steps is beyond 80 % of the range of rewards."""
    given, last = rewards(steps), rewards(steps[-WINDOW:])
    return bool(last) and fmean(last) > min(given) + 0.8 * (max(given) - min(given))


def entropy_collapse(steps: Sequence[StepRecord]) -> Finding | None:
    """Sampling hardly explores any more.

    The mean entropy of the last ten steps' tokens is below a tenth of that of the first step, and the reward is not
    near its best: a policy that has solved its task needs no entropy.
    """
    entropies = [
        fmean(known) for step in steps if (known := [one.entropy for one in step.responses if one.entropy is not None])
    ]
    if len(entropies) < 2 * WINDOW or entropies[0] <= 0:
        return None
    left = mean(entropies[-WINDOW:])
    if left.high >= COLLAPSED * entropies[0] or solved(steps):
        return None
    return Finding(
        "entropy_collapse",
        "illness",
        "The policy hardly explores any more, and has not solved its task.",
        f"entropy is {left} nats a token over the last {WINDOW} steps, after {entropies[0]:.2g} in the first",
        "almost certain",
        "kl=k1, or a smaller eta0",
        "beta=0.04, or half the learning_rate",
    )


def truncated(steps: Sequence[StepRecord]) -> Finding | None:
    """Most responses are cut by the limit of tokens: over the last ten steps Wilson's interval lies above one half."""
    ends = [one.finished for step in steps[-WINDOW:] for one in step.responses if one.finished is not None]
    found = share(ends.count(False), len(ends))
    if found.low <= 0.5:
        return None
    longest = max(one.length or 0 for step in steps[-WINDOW:] for one in step.responses)
    return Finding(
        "truncated",
        "illness",
        "Most responses are cut by the limit of tokens before they answer.",
        f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}] of {len(ends)}, at {longest} tokens",
        "certain",
        f"rollout.max_new_tokens={2 * longest}",
        f"max_completion_length={2 * longest}, or mask_truncated_completions=True",
    )


def by_others(group: Sequence[Response], weights: Sequence[float]) -> bool | None:
    """Whether advantages are in proportion to rewards less the others' weighted means; None where rewards are alike."""
    given = [(one.reward, one.advantage) for one in group if one.reward is not None and one.advantage is not None]
    if len(given) < len(group):
        return False
    if len({reward for reward, _ in given}) == 1:
        return None
    expected = []
    for i, (reward, _) in enumerate(given):
        others = [(weight, other) for j, (weight, (other, _)) in enumerate(zip(weights, given, strict=True)) if j != i]
        whole = math.fsum(weight for weight, _ in others)
        expected.append(reward - math.fsum(weight * other for weight, other in others) / (whole or 1.0))
    found = [advantage for _, advantage in given]
    product = math.fsum(a * b for a, b in zip(expected, found, strict=True))
    return product > 0.999 * math.hypot(*expected) * math.hypot(*found)


def one_hand(steps: Sequence[StepRecord]) -> Finding | None:
    """One response has all the weight of its group, and the baseline hangs on it.

    Of weights ``w_i = ρ_i² n_i`` the effective number is ``(Σ w)²/Σ w²``. Said where of the last ten steps' groups of
    more than two responses, at least ten, most have one below 1.1, by Wilson's interval of their share, and where most
    advantages are those that a baseline by these weights gives (:func:`by_others`).
    """
    sizes, weighted = list[float](), list[bool]()
    for step in steps[-WINDOW:]:
        for group in by_group(step):
            weights = [
                one.square_norm * math.exp(2 * min(one.log_ratio or 0.0, 100.0))
                for one in group
                if one.square_norm is not None
            ]
            if len(weights) == len(group) > 2 and sum(weights) > 0:
                sizes.append(sum(weights) ** 2 / sum(weight**2 for weight in weights))
                if (follow := by_others(group, weights)) is not None:
                    weighted.append(follow)
    found = share(sum(size < ALONE for size in sizes), len(sizes))
    if 2 * sum(weighted) <= len(weighted) or len(sizes) < WINDOW or found.low <= 0.5:
        return None
    return Finding(
        "one_hand",
        "illness",
        "In most groups one response has all the weight: what the others are compared with hangs on it alone.",
        f"the effective number of responses is below {ALONE} in {percent(found.value)} [{percent(found.low)}, "
        f"{percent(found.high)}] of {len(sizes)} groups",
        "almost certain",
        "baseline.prior=past, or baseline=rloo",
        "",
    )
