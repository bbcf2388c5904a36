"""What would pay in a run that has no illness; where the policy broke for want of it, it is one itself."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from oblr.doctor.findings import Finding, by_group, percent, rewards
from oblr.doctor.measures import Interval, ratio, share, slope
from oblr.doctor.moving import broke, moved, solved
from oblr.statistics.baselines import second_moments
from oblr.statistics.log import StepRecord

#: Steps without which nothing is advised.
LEAST = 16
#: Share of signal in what the steps move below which N is too small, and above which it is larger than pays.
NOISY, CLEAR = 0.2, 0.9
#: The same where the reward does not rise.
HINDERED = 0.45
#: What a change has to take off the noise, at least.
WORTH = 0.1
#: Responses of a group that no advice goes below: smaller groups die, and their baselines are noise.
SMALL = 8
#: What is left of the slope along an update, above which the rate limits the run and not the noise.
UNDONE = 0.5
#: Of the range of rewards: a policy that gains less a step hardly moves.
SLOW = 0.01


def signal_share(steps: Sequence[StepRecord]) -> Interval:
    """``Σ η (‖ĝ‖² − tr H/N) / Σ η ‖ĝ‖²``: how much of what the steps move along their gradients is signal.

    Without bias above and below; weighted with the rates, since a step that is not taken need not be clear. Equals
    ``N/(N + N*)`` with the critical number of prompts ``N* = tr H/‖∇J‖²`` (arXiv 1812.06162).
    """
    known = [step for step in steps if math.isfinite(step.signal)]
    rates = [1.0 if step.learning_rate is None else step.learning_rate for step in known]
    clear = [rate * step.signal for rate, step in zip(rates, known, strict=True)]
    return ratio(clear, [rate * step.gradient_square for rate, step in zip(rates, known, strict=True)])


def left_at_the_end(steps: Sequence[StepRecord]) -> Interval:
    """``Σ η ⟨ĝ_t, ĝ_{t+1}⟩ / Σ η (‖ĝ_t‖² − tr H/N)`` of updates ``−η ĝ``, both without bias.

    What is left, where an update ends, of the slope along it: nothing at the best single step η*, and ``1 − η/η*`` at
    another, as far as J is quadratic on the way. Weighted with the rates, since steps that a schedule shortens are
    small on purpose.
    """
    pairs = [
        (step.learning_rate * later.onward * math.sqrt(step.gradient_square * later.gradient_square), step)
        for step, later in pairwise(steps)
        if step.plain and step.learning_rate and later.onward is not None and math.isfinite(step.signal)
    ]
    return ratio([left for left, _ in pairs], [(step.learning_rate or 0.0) * step.signal for _, step in pairs])


def is_undone(left: Interval) -> bool:
    """Whether the rate limits a run: more than half of the slope is left where updates end, and surely some."""
    return left.value > UNDONE and left.low > 0


def split_noise(steps: Sequence[StepRecord]) -> tuple[list[float], list[float]]:
    """Of each step where it is known: tr H, the noise of a prompt's gradient, and its part of sampling responses."""
    known = [step for step in steps if math.isfinite(step.noise) and math.isfinite(step.noise_within)]
    return [step.noise for step in known], [step.noise_within for step in known]


def large_groups(steps: Sequence[StepRecord]) -> Finding | None:
    """Fewer responses to more prompts would take noise off the step, at no more responses.

    tr H splits into a part of prompts, B, and one of sampling, W/G. At the same N·G, and G′ ≥ 8, the noise of the step
    goes from ``(B + W/G)/N`` to ``(B + W/G′)·G′/(N·G)``. Said where the upper end of the ratio's 95 % interval leaves
    off a tenth, for the largest such change that doubles N at least.
    """
    whole, sampled = split_noise(steps)
    if len(whole) < LEAST:
        return None
    sizes = [len(group) for group in by_group(steps[-1])]
    size, count = min(sizes), len(sizes)
    fewer = SMALL
    if size < 2 * fewer:
        return None
    after = [(w - s + s * size / fewer) * fewer / size for w, s in zip(whole, sampled, strict=True)]
    left = ratio(after, whole)
    if not left.high < 1 - WORTH:
        return None
    more = count * size // fewer
    return Finding(
        "large_groups",
        "tuning" if broke(steps) is None else "illness",
        f"Groups are larger than pays: {fewer} responses to {more} prompts would be clearer than {size} to {count}.",
        f"the noise of the step would be {left} of what it is, since {percent(1 - ratio(sampled, whole).value)} of a "
        "prompt's noise is which prompt it is",
        "almost certain",
        f"rollout.prompts_per_step={more} rollout.group_size={fewer}",
        f"num_generations={fewer}",
    )


def few_prompts(steps: Sequence[StepRecord]) -> Finding | None:
    """Steps are mostly noise: N is far below the critical number of prompts.

    Said where the 95 % interval of the signal's share of what the steps move lies below 20 %, so that doubling N would
    give a step 1.7 times its progress; or below 45 %, where noise has kept the run from its task: the policy broke
    (:func:`~oblr.doctor.moving.broke`), or the mean reward does not rise, by the 95 % interval of its slope. Not said
    where the rate is what limits it (:func:`is_undone`): noise of small steps cancels from step to step.
    """
    found = signal_share(steps)
    broken = broke(steps) is not None
    means = [fmean(known) for step in steps if (known := rewards([step]))]
    idle = broken or (len(means) >= LEAST and slope(means).low <= 0 and not solved(steps))
    if len(steps) < LEAST or not found.high < (HINDERED if idle else NOISY) or is_undone(left_at_the_end(steps)):
        return None
    count, responses = steps[-1].moments.n_groups, len(steps[-1].responses)
    return Finding(
        "few_prompts",
        "illness" if broken else "tuning",
        f"Steps of {count} prompts are mostly noise: with four times as many each would gain up to four times as much.",
        f"{100 * found.value:.0f} % [{100 * found.low:.0f}, {100 * found.high:.0f}] of what the steps move along their "
        "gradients is signal",
        "likely",
        f"rollout.prompts_per_step={4 * count}",
        f"gradient_accumulation_steps such that an update has {4 * responses} completions in place of {responses}",
    )


def many_prompts(steps: Sequence[StepRecord]) -> Finding | None:
    """Steps are clearer than pays: N is far above the critical number of prompts.

    Said where the 95 % interval of the signal's share lies above 90 %: half the prompts would lose a step 9 % at most,
    and cost half.
    """
    found = signal_share(steps)
    if len(steps) < LEAST or not found.low > CLEAR or steps[-1].moments.n_groups < 4:
        return None
    count, responses = steps[-1].moments.n_groups, len(steps[-1].responses)
    return Finding(
        "many_prompts",
        "tuning",
        f"Steps of {count} prompts are clearer than pays: half as many would gain nearly as much, at half the cost.",
        f"{100 * found.value:.0f} % [{100 * found.low:.0f}, {100 * found.high:.0f}] of what the steps move along their "
        "gradients is signal",
        "likely",
        f"rollout.prompts_per_step={count // 2}",
        f"gradient_accumulation_steps such that an update has {responses // 2} completions in place of {responses}",
    )


def pooled_baseline(steps: Sequence[StepRecord]) -> Finding | None:
    """All prompts have one baseline, though their mean rewards differ.

    ``b_i = R_i − A_i`` where advantages are rewards less a baseline. A pooled one is seen by groups of equal rewards,
    which a baseline of the group gives none: said where nine in ten of at least 20 such groups have an advantage, and
    these share one sign with their reward. A group's own baseline would spare what they add to the noise.
    """
    moved, still, spared, all_parts = 0, 0, list[float](), list[float]()
    for step in steps:
        own = other = 0.0
        for group in by_group(step):
            given = [one.reward for one in group]
            advantages = [one.advantage for one in group]
            if None in given or None in advantages or len(group) < 2:
                continue
            parts = math.fsum(one.gradient_square or 0.0 for one in group)
            own += parts
            if len(set(given)) == 1:
                equal = any(abs(a or 0.0) > 1e-6 for a in advantages)
                moved, still = moved + equal, still + (not equal)
                other += parts
        spared.append(other)
        all_parts.append(own)
    found = share(moved, moved + still)
    if moved < 20 or found.low < 0.9:
        return None
    known = [(a, b) for a, b in zip(spared, all_parts, strict=True) if b > 0]
    added = ratio([a for a, _ in known], [b for _, b in known])
    return Finding(
        "pooled_baseline",
        "tuning",
        "All prompts share one baseline: those that are always solved, or never, move the policy and teach it nothing.",
        f"{moved} of {moved + still} groups of equal rewards have an advantage"
        + (f"; they make {added} of the responses' squared gradients" if math.isfinite(added.value) else ""),
        "certain",
        "baseline=rloo, or baseline=gradient_weighted",
        "scale_rewards=none with GRPOTrainer, whose baseline is the group's mean",
    )


def weighted_baseline(steps: Sequence[StepRecord]) -> Finding | None:
    """Weighing the other responses' rewards by their gradients' norms would take noise off the step.

    Looked for where advantages are the rewards less the mean of their group, but for one factor. What each of two
    unbiased baselines would have made of the very same responses is ``Σ (R_i − b_i)² n_i``: their means agree, so the
    difference is one of variances, those within prompts. tr H has the rest from elsewhere. Said where by the upper ends
    of both 95 % intervals a tenth of tr H is left off.
    """
    centred = [step for step in steps if _centred(step)]
    found = [second_moments(step) for step in centred]
    known = [of for of in found if all(map(math.isfinite, of.values()))]
    whole, sampled = split_noise(centred)
    if min(len(known), len(whole)) < LEAST:
        return None
    within = ratio([of["gradient_weighted"] for of in known], [of["rloo"] for of in known]).high
    left = ratio([w - s * (1 - within) for w, s in zip(whole, sampled, strict=True)], whole)
    if not left.high < 1 - WORTH:
        return None
    return Finding(
        "weighted_baseline",
        "tuning",
        "The group's mean is not the baseline that leaves least noise: rewards weighted by gradient norms leave less.",
        f"the noise of the step would be at most {percent(left.high)} of what it is: at most {percent(within)} of that "
        f"of sampling, by {len(known)} steps",
        "almost certain",
        "baseline=gradient_weighted",
        "",
    )


def _centred(step: StepRecord) -> bool:
    """Whether advantages are rewards less the mean of their group, times one factor."""
    pairs = list[tuple[float, float]]()
    for group in by_group(step):
        given = [one.reward for one in group if one.reward is not None]
        taken = [one.advantage for one in group if one.advantage is not None]
        if not len(given) == len(taken) == len(group) > 1:
            return False
        pairs += [(reward - fmean(given), advantage) for reward, advantage in zip(given, taken, strict=True)]
    square = math.fsum(reward**2 for reward, _ in pairs)
    if square == 0:
        return False
    factor = math.fsum(reward * advantage for reward, advantage in pairs) / square
    return all(abs(advantage - factor * reward) <= 1e-4 * abs(factor) for reward, advantage in pairs)


def easy_groups(steps: Sequence[StepRecord]) -> Finding | None:
    """Most prompts are solved by all their responses: over the last 20 steps Wilson's interval lies above 70 %."""
    best = max(rewards(steps), default=0.0)
    groups = [
        [one.reward for one in group if one.reward is not None] for step in steps[-20:] for group in by_group(step)
    ]
    groups = [given for given in groups if len(given) > 1]
    found = share(sum(min(given) == best for given in groups), len(groups))
    if len(steps) < LEAST or found.low <= 0.7:
        return None
    return Finding(
        "easy_groups",
        "tuning",
        "Most prompts are solved by all their responses: harder ones would teach more, at the same cost.",
        f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}] of {len(groups)} groups",
        "certain",
        "data.difficulty.high=0.9, with pass rates from src/eval.py",
        "leave out of train_dataset what the policy always solves",
    )


def rate_small(steps: Sequence[StepRecord]) -> Finding | None:
    """Steps hardly move the policy.

    Said of one that has not solved its task, by one of two signs:

    - steps of the later half are mostly signal (the 95 % interval of its share lies above 40 %), so that noise does
      not limit the rate; and the mean reward rises by less than a hundredth of its range a step, by the upper end of a
      95 % interval of its slope. Not said where it is known that less than half of the slope along updates is left;
    - where updates are ``−η ĝ``, more than half of what their gradients promise is left where they end
      (:func:`is_undone`). The rate that is advised leaves nothing; it is four times as large at most.
    """
    given = rewards(steps)
    if len(steps) < LEAST or not given or max(given) == min(given) or solved(steps):
        return None
    clear, left = signal_share(steps[len(steps) // 2 :]), left_at_the_end(steps)
    rise = slope([fmean(known) for step in steps if (known := rewards([step]))])
    factor = 4.0
    if is_undone(left):
        factor = min(1 / (1 - left.value), factor) if left.value < 1 else factor
        why = f"{percent(left.value)} of what updates promise is left where they end, at least {percent(left.low)}"
    elif clear.low > 0.4 and rise.high < SLOW * (max(given) - min(given)) and not left.high < UNDONE:
        why = (
            f"{percent(clear.value)} of what the later steps move is signal, at least {percent(clear.low)}; the mean "
            f"reward rises by {rise} a step"
        )
    else:
        return None
    rate = factor * max(step.learning_rate or 0.0 for step in steps)
    return Finding(
        "rate_small",
        "tuning",
        "The learning rate is too small: the steps hardly move the policy.",
        why,
        "likely",
        f"eta0={rate:.2g}",
        f"learning_rate={rate:.2g}",
    )


def clip(steps: Sequence[StepRecord]) -> Finding | None:
    """A few long steps make most of the movement, and most of it is noise.

    Said where the longest twentieth of at least 40 steps have more than half of ``Σ (η ‖ĝ‖)²``.
    """
    squares = sorted(moved(step) for step in steps)
    few = len(steps) // 20
    if len(steps) < 40 or sum(squares) == 0 or sum(squares[-few:]) <= 0.5 * sum(squares):
        return None
    usual = math.sqrt(sorted(step.gradient_square for step in steps)[len(steps) // 2])
    return Finding(
        "clip",
        "tuning",
        "A few long steps make most of the movement: shorten them to the length of usual ones.",
        f"{few} of {len(steps)} steps have {percent(sum(squares[-few:]) / sum(squares))} of the squared movement; the "
        f"median ‖ĝ‖ is {usual:.2g}",
        "likely",
        "schedule=noise_linear, or schedule=constant_clipped",
        f"max_grad_norm={usual:.2g}",
    )
