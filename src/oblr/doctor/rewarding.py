"""Illnesses of the rewards: they pay what they should not, or tell nothing."""

from collections.abc import Sequence
from statistics import fmean, median

from oblr.doctor.findings import Finding, by_group, called, percent, quoted, rewards
from oblr.doctor.measures import mean, share
from oblr.statistics.log import StepRecord

#: A reward is odd where it lies so many times the range of all others beyond them.
BEYOND = 3.0
#: Most responses of a run that can be odd.
RARE = 0.01
#: A response is empty that has at most so much of the usual length.
EMPTY = 0.25
#: Of the last steps, how many are looked at where the run's end counts.
LAST = 20


def odd_reward(steps: Sequence[StepRecord]) -> Finding | None:
    """A few rewards lie far beyond all others.

    All but the 1 % that lie farthest from the median make a range. A reward is odd that lies three such ranges beyond
    its ends: rewards of any bounded scale never do, and normal ones of standard deviation σ would have to be 18 σ away.
    """
    given = [
        (one.reward, step, place)
        for step in steps
        for place, one in enumerate(step.responses)
        if one.reward is not None
    ]
    if len(given) < 50:
        return None
    middle = median(reward for reward, _, _ in given)
    ordered = sorted(given, key=lambda found: abs(found[0] - middle))
    usual = [reward for reward, _, _ in ordered[: len(ordered) - max(1, int(RARE * len(ordered)))]]
    low, high = min(usual), max(usual)
    if low == high:
        low, high = min(low, 0.0), max(high, 1.0)
    far = (high - low) * BEYOND
    odd = [found for found in ordered if not low - far <= found[0] <= high + far]
    if not odd:
        return None
    reward, step, place = odd[-1]
    one = step.responses[place]
    return Finding(
        "odd_reward",
        "illness",
        f"A reward is on another scale: {called(step, place)} was given {reward:g}. It says {quoted(one.text)}.",
        f"{len(odd)} of {len(given)} rewards lie outside of [{low:g}, {high:g}], where all others are"
        + (f"; its part in the gradient is {_part(step, place)}" if one.gradient_square else ""),
        "certain",
        "reward: bound it, as in min(max(reward, 0), 1); src/oblr/rewards shows how",
        "bound what reward_funcs return, as in max(0.0, min(1.0, reward))",
        step.step,
        place,
    )


def _part(step: StepRecord, place: int) -> str:
    lengths = [(one.gradient_square or 0.0) ** 0.5 for one in step.responses]
    return percent(lengths[place] / sum(lengths)) if sum(lengths) else "unknown"


def paid_for_nothing(steps: Sequence[StepRecord]) -> Finding | None:
    """Responses without content are paid, and better than others to the same prompts.

    Without content are those of at most a quarter of the median length in the first step. Compared inside the
    groups that have both kinds, so that easy prompts, which need few words, do not count. Said where, of at least 20
    such groups, empty responses get at least 95 % of the best reward and 0.15 of it more than the others, by the ends
    of 95 % intervals over groups. Short and right is no illness: such responses are not always paid where others fail.
    """
    early = [one.length for step in steps[:1] for one in step.responses if one.length]
    if not early:
        return None
    short = EMPTY * median(early)
    paid, more, examples, found = list[float](), list[float](), list[str | None](), 0
    best, least = max(rewards(steps), default=0.0), min(rewards(steps), default=0.0)
    if best == least:
        return None
    for step in steps:
        for group in by_group(step):
            known = [(one.length, one) for one in group if one.reward is not None and one.length is not None]
            empty = [one for length, one in known if length <= short]
            others = [one for length, one in known if length > short]
            found += len(empty)
            if empty and others:
                own, rest = (
                    fmean(((one.reward or 0.0) - least) / (best - least) for one in some) for some in (empty, others)
                )
                paid.append(own)
                more.append(own - rest)
                examples.append(empty[0].text)
    if len(paid) < 20 or mean(paid).low < 0.95 or mean(more).low < 0.15:
        return None
    return Finding(
        "paid_for_nothing",
        "illness",
        f"The reward pays responses that say next to nothing, such as {quoted(examples[-1])}.",
        f"those of at most {short:.0f} tokens get {percent(mean(paid).value)} of the best reward, "
        f"{100 * mean(more).value:.0f} points more than others to the same {len(paid)} prompts; "
        f"there are {found} of them",
        "almost certain",
        "reward: give 0 where there is no answer, before anything else is looked at",
        "return 0.0 from reward_funcs where the completion has no answer",
    )


def dead_groups(steps: Sequence[StepRecord]) -> Finding | None:
    """Most prompts are failed by all their responses, and teach nothing.

    A group whose rewards are all equal has no gradient under a baseline of the group. Counted over the last 20 steps
    are those equal below the best reward of the run; said where Wilson's interval lies above one half.
    """
    best = max(rewards(steps), default=0.0)
    groups = [
        [one.reward for one in group if one.reward is not None] for step in steps[-LAST:] for group in by_group(step)
    ]
    groups = [given for given in groups if len(given) > 1]
    failed = sum(min(given) == max(given) < best for given in groups)
    found = share(failed, len(groups))
    if found.low <= 0.5:
        return None
    return Finding(
        "dead_groups",
        "illness",
        "Most prompts teach nothing: all of their responses fail alike.",
        f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}] of {len(groups)} groups have equal "
        f"rewards below the best, {best:g}",
        "certain",
        "rollout.refill=2, or data.difficulty.low=0.1 with pass rates from src/eval.py; or see whether these answers "
        "can be paid at all",
        "filter train_dataset by the share that the policy solves; num_generations=16 finds rarer successes",
    )
