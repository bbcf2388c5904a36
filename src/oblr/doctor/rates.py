"""Rates that are too large or too small, by what steps promise and what has come of it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from oblr.doctor.findings import Finding, percent, rewards
from oblr.doctor.measures import Interval, mean, ratio, slope
from oblr.doctor.moving import WINDOW, broke, lost, solved
from oblr.statistics.log import StepRecord

#: Steps without which nothing is advised.
LEAST = 16
#: Share of signal in what the steps move below which N is too small.
NOISY = 0.2
#: What is left of the slope along an update, above which the rate limits a run even if its steps are noisy; below its
#: negative, steps overshoot.
UNDONE = 0.5
#: The same, above which a larger rate would pay.
SHORT = 0.25
#: Of a normal distribution: what lies above is 5 %.
ONE_SIDED = 1.645
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


def rate_large(steps: Sequence[StepRecord]) -> Finding | None:
    """Steps overshoot.

    Three signs, each is enough:

    - the policy has broken (:func:`broke`), and half of the steps until then, signal alone, promised by first order
      more than half of the range of rewards: it would have broken without any noise;
    - in a policy that has neither broken nor solved its task, where there is no more to come, the first-order gain
      ``Σ η_t (‖ĝ_t‖² − tr H/N)`` of updates ``−η ĝ``, without bias, promises a change of the mean reward, from the
      first ten steps to the last ten; half of it comes at the best single step, all at a small one, none where steps
      are twice too long. Said where a tenth of the range of rewards is promised at least, and less than a quarter of
      it comes, by the ends of both 95 % intervals;
    - where updates end they lead up. Of updates ``−η ĝ`` it is known how steeply: more than half as steeply as they
      lead down where they begin, by a 95 % interval (:func:`left_at_the_end`), so that a step gains less than three
      quarters of what the best one would. By another optimizer, or in a policy that has broken, the mean cosine of an
      update with the next ``−ĝ`` lies below 0, by a 95 % interval. Where the policy has broken, or has lost half of
      what it could (:func:`lost`), the steps until it had are looked at, and the sign alone is enough; or, where they
      are mostly noise and the sign may be chance, a one-sided interval.
    """
    if (found := _upward(steps)) is not None:
        return found
    if not steps or not all(step.plain for step in steps):
        return None
    if (sign := _breaking(steps)) is not None:
        return _overshoot(steps, sign)
    if broke(steps) is not None or solved(steps) or len(steps) < 2 * WINDOW:
        return None
    given = [rewards([step]) for step in steps]
    gains = [(step.learning_rate or 0.0) * step.signal for step in steps]
    if not all(given) or not all(map(math.isfinite, gains)):
        return None
    means = [fmean(of) for of in given]
    first, last, between = mean(means[:WINDOW]), mean(means[-WINDOW:]), gains[WINDOW // 2 : -(WINDOW // 2)]
    promised, come = mean(between), last.value - first.value
    least, most = promised.low * len(between), come + math.hypot(last.high - last.value, first.high - first.value)
    spread = [one for of in given for one in of]
    if least < 0.1 * (max(spread) - min(spread)) or most >= 0.25 * least:
        return None
    return _overshoot(
        steps,
        f"the steps' first-order gain is {promised.value * len(between):.2g} of reward, at least {least:.2g}; "
        f"{come:.2g} has come, at most {most:.2g}",
    )


def _upward(steps: Sequence[StepRecord]) -> Finding | None:
    broken, until = broke(steps) is not None, lost(steps)
    seen = steps if until is None else steps[: max(until, WINDOW) + 1]
    ends = [step.onward for step in seen if step.onward is not None]
    if len(ends) < WINDOW:
        return None
    cosine, left, plain = mean(ends), left_at_the_end(steps), all(step.plain for step in steps)
    evidence = f"where updates end they lead up: their mean cosine with the next −ĝ is {cosine}"
    if plain and left.high < -UNDONE:
        return _overshoot(steps, f"{evidence}, and the slope there {left} of what it was", 1 / (1 - left.value))
    if not broken and until is None:
        sure = not plain and cosine.high < 0
    elif signal_share(seen).high < NOISY:
        sure = mean(ends, ONE_SIDED).high < 0
    else:
        sure = cosine.value < 0
    return _overshoot(steps, evidence) if sure else None


def _breaking(steps: Sequence[StepRecord]) -> str | None:
    place = broke(steps)
    if place is None:
        return None
    gain = median((step.learning_rate or 0.0) * step.signal for step in steps[: place + 1])
    given = rewards(steps)
    if not gain > 0.5 * (max(given) - min(given)):
        return None
    return (
        f"a step until then promised {gain:.2g} of reward by first order, more than there is; after step "
        f"{steps[place].step} the mean reward was {fmean(rewards(steps[place + 1 : place + 6])):.2g}"
    )


def _overshoot(steps: Sequence[StepRecord], evidence: str, factor: float = 0.25) -> Finding:
    said = "The learning rate is too large: steps overshoot, and gain far less than their gradients promise."
    return Finding("rate_large", "illness", said, evidence, "almost certain", *_changed(steps, factor))


def _changed(steps: Sequence[StepRecord], factor: float) -> tuple[str, str]:
    """The settings that make the rate ``factor`` times as large: this program's, and TRL's.

    The first starts from what the run was told, if that is known: a schedule may make rates of ``eta0`` that are never
    as large, or take it for a length. Else both start from the largest rate of ``steps``.
    """
    largest = max(step.learning_rate or 0.0 for step in steps)
    told = steps[-1].eta0 or largest
    return f"eta0={factor * told:.2g}", f"learning_rate={factor * largest:.2g}"


def rate_small(steps: Sequence[StepRecord]) -> Finding | None:
    """Steps hardly move the policy.

    Said of one that has not solved its task, by one of two signs:

    - steps of the later half are mostly signal (the 95 % interval of its share lies above 40 %), so that noise does
      not limit the rate; and the mean reward rises by less than a hundredth of its range a step, by the upper end of a
      95 % interval of its slope. Not said where it is known that less than half of the slope along updates is left;
    - where updates are ``−η ĝ``, more than a quarter of their slope is left where they end (:func:`left_at_the_end`),
      and surely some; surely more than half in a run whose steps are mostly noise, which is the likelier cause
      (:func:`~oblr.doctor.tuning.few_prompts`). The rate that is advised leaves nothing; it is four times as large at
      most.
    """
    given = rewards(steps)
    if len(steps) < LEAST or not given or max(given) == min(given) or solved(steps):
        return None
    clear, left = signal_share(steps[len(steps) // 2 :]), left_at_the_end(steps)
    rise = slope([fmean(known) for step in steps if (known := rewards([step]))])
    factor = 4.0
    if left.value > SHORT and left.low > (UNDONE if signal_share(steps).high < NOISY else 0):
        factor = min(1 / (1 - left.value), factor) if left.value < 1 else factor
        why = f"{percent(left.value)} of what updates promise is left where they end, at least {percent(left.low)}"
    elif clear.low > 0.4 and rise.high < SLOW * (max(given) - min(given)) and not left.high < UNDONE:
        why = (
            f"{percent(clear.value)} of what the later steps move is signal, at least {percent(clear.low)}; the mean "
            f"reward rises by {rise} a step"
        )
    else:
        return None
    said = "The learning rate is too small: the steps hardly move the policy."
    return Finding("rate_small", "tuning", said, why, "likely", *_changed(steps, factor))
