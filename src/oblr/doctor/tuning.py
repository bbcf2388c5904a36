"""What would pay in a run that has no illness; where the policy broke for want of it, it is one itself."""

import math
from collections.abc import Sequence
from statistics import fmean

from oblr.doctor.findings import Finding, by_group, percent, rewards
from oblr.doctor.measures import Interval, ratio, share, slope
from oblr.doctor.moving import broke, moved, solved
from oblr.doctor.rates import LEAST, NOISY, UNDONE, left_at_the_end, signal_share
from oblr.statistics.baselines import second_moments
from oblr.statistics.log import StepRecord

#: Share of signal in what the steps move below which N is too small where the reward does not rise, and above which it
#: is larger than pays.
HINDERED, CLEAR = 0.45, 0.9
#: What a change has to take off the noise, at least.
WORTH = 0.1
#: Responses of a group that no advice goes below: smaller groups die, and their baselines are noise.
SMALL = 8


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
    where it is surely the rate that limits it (:func:`~oblr.doctor.rates.rate_small`).
    """
    found = signal_share(steps)
    broken = broke(steps) is not None
    means = [fmean(known) for step in steps if (known := rewards([step]))]
    idle = broken or (len(means) >= LEAST and slope(means).low <= 0 and not solved(steps))
    if len(steps) < LEAST or not found.high < (HINDERED if idle else NOISY) or left_at_the_end(steps).low > UNDONE:
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
    these share one sign with their reward. A group's own baseline would spare what they add to the noise. Not said
    where it is known that the advantages leave less than half the second moment of RLOO's: those of a prior do.
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
    if moved < 20 or found.low < 0.9 or _beside_rloo(steps).high < 0.5:
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


def _beside_rloo(steps: Sequence[StepRecord]) -> Interval:
    """``Σ A_i² n_i`` over what it would be with RLOO's advantages, by steps whose norms are all known."""
    given, rloo = list[float](), list[float]()
    for step in steps:
        parts = [
            math.nan if one.advantage is None or one.square_norm is None else one.advantage**2 * one.square_norm
            for one in step.responses
        ]
        if parts and math.isfinite(own := fmean(parts)) and math.isfinite(other := second_moments(step)["rloo"]):
            given.append(own)
            rloo.append(other)
    return ratio(given, rloo)


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
        "schedule=linear_clipped",
        f"max_grad_norm={usual:.2g}",
    )
