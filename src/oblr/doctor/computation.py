"""Illnesses of the computation: the update, its ratios and its samples are not what they pass for."""

import math
import struct
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from oblr.doctor.findings import Finding, by_group, called, percent, quoted
from oblr.doctor.measures import log_tail, ratio, share
from oblr.statistics.log import Response, StepRecord

#: Steps in which a group's norms were only estimated say so where they are as much beyond.
SLACK, SLACK_ESTIMATED = 1.01, 2.0
#: How near a number of bfloat16 is one: numbers of it lie 2⁻⁸ to 2⁻⁷ of their size apart.
NEAR = 1e-6
#: Ratios nearer to 1 than this tell nothing: a finer number would be rounded there as well.
ONE = 1e-4
#: What rounding makes of a token's log-probability in bfloat16, as the root mean square in nats, and the largest that
#: is no illness: engines in bfloat16 show 0.01 to 0.03.
DRIFT = 0.1
#: What is more than rounding makes in float32, and the factor by which new weights reduce it.
DRIFTING, FALL = 0.003, 100.0
#: log₁₀ of how likely all that is called a duplicate may be by chance, in a whole run.
CHANCE = -3.0
#: What a decoder writes for bytes that are no character.
NO_CHARACTER = "\ufffd"


def foreign_gradient(steps: Sequence[StepRecord]) -> Finding | None:
    """The gradient that was stepped is not the mean of its prompts' gradients.

    ``‖ĝ‖² = ‖(1/N) Σ g_q‖² ≤ (1/N) Σ ‖g_q‖²`` by Jensen's inequality, whatever the data. Where it does not hold,
    something has entered or scaled the gradient after the responses' parts were measured. Said where three steps and a
    tenth of them break it, by more than 1 % (twofold where norms are estimates).
    """
    known = [(step, step.moments.square_mean) for step in steps]
    known = [(step, square) for step, square in known if math.isfinite(square) and step.gradient_square > 0]
    broken = [
        (step, square)
        for step, square in known
        if step.gradient_square > (SLACK_ESTIMATED if step.estimated else SLACK) * square
    ]
    if len(broken) < max(3, len(known) / 10):
        return None
    over = ratio([step.gradient_square for step, _ in broken], [square for _, square in broken])
    layer = _heaviest(broken[-1][0])
    return Finding(
        "foreign_gradient",
        "illness",
        "The gradient that is stepped is not the mean of its prompts' gradients: something scales a layer, or adds to "
        f"the gradient, after the backward pass{layer}.",
        f"‖ĝ‖² is {over.value:.3g} × the mean ‖g_q‖² in {len(broken)} of {len(known)} steps; no mean "
        "is longer than its parts",
        "certain",
        "policy.adapter=none and no hook on gradients: compare the run with one without your change",
        "remove what changes p.grad: hooks, a scaler that is not undone, a learning rate by layer",
        broken[0][0].step,
    )


def _heaviest(step: StepRecord) -> str:
    if not step.layers:
        return ""
    name, held = max(step.layers.items(), key=lambda item: item[1])
    return f" (most of the responses' parts, {percent(held)}, is in {name})"


def coarse_ratio(steps: Sequence[StepRecord]) -> Finding | None:
    """Importance ratios, or their logarithms, are rounded to bfloat16.

    Such numbers have 8 significant bits. Of finer ones a share of ``2·10⁻⁶ / 2⁻⁸ ≈ 5·10⁻⁴`` lies so near to one of
    them by chance; 90 % of at least 20 ratios that differ from 1 are no chance.
    """
    logs = [one.log_ratio for step in steps for one in step.responses if one.log_ratio is not None]
    logs = [log for log in logs if ONE < abs(log) < 50]
    if len(logs) < 20:
        return None
    kinds = {"ratios": [math.exp(log) for log in logs], "their logarithms": logs}
    for name, values in kinds.items():
        on = sum(abs(_bfloat16(value) - value) <= NEAR * abs(value) for value in values)
        if on > 0.9 * len(values):
            return Finding(
                "coarse_ratio",
                "illness",
                "Importance ratios are computed in bfloat16, which cannot tell 1.000 from 1.003: policies that differ "
                "look alike, and clipping acts on rounding.",
                f"{percent(on / len(values))} of {len(values)} {name} are numbers of bfloat16; of finer ones "
                "0.05 % would be",
                "certain",
                "policy.dtype=float32, or trainer.precision=bf16-mixed, which keeps log-probabilities in float32",
                "compute log-probabilities in float32: bf16=True with a model loaded in float32, not bfloat16",
            )
    return None


def _bfloat16(value: float) -> float:
    """The nearest number of bfloat16, ties upwards."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x8000) & 0xFFFF0000))[0]


def stale_engine(steps: Sequence[StepRecord]) -> Finding | None:
    """Responses are not of the policy that learns from them.

    Of a response of T tokens whose log-probabilities are each off by an independent error, ``(log ρ)²/T`` is the mean
    square of these errors; rounding in bfloat16 makes 0.01 to 0.03 nats of their root r. Steps that learn again from
    the responses of the step before are left out, and so are those whose responses are meant to be of older weights.
    Either of two signs is enough:

    - r exceeds 0.1 in so many steps that Wilson's interval of their share lies above 30 %;
    - r falls by a factor of 100 from one step to the next, at least twice: the engine gets new weights at these steps
      alone. Rounding, and a policy that moves less and less, know no such falls.
    """
    roots, before = list[tuple[float, StepRecord]](), list[str | None]()
    for step in steps:
        squares = [one.log_ratio**2 / one.length for one in step.responses if one.log_ratio is not None and one.length]
        texts = [one.text for one in step.responses]
        if squares and not step.age and (texts != before or not any(texts)):
            roots.append((math.sqrt(fmean(squares)), step))
        before = texts
    off = [step for root, step in roots if root > DRIFT]
    falls = [b.step for (root, _), (after, b) in pairwise(roots) if root > DRIFTING and root > FALL * after]
    if share(len(off), len(roots)).low <= 0.3 and len(falls) < 2:
        return None
    worst, at = max(roots, key=lambda found: found[0])
    rare = f"; it is gone at steps {', '.join(map(str, falls[:4]))} alone" if len(falls) > 1 else ""
    return Finding(
        "stale_engine",
        "illness",
        "Responses are sampled from another policy than the one that learns from them: the engine has old weights, or "
        "computes something else.",
        f"|log π − log μ| of a token is {worst:.2g} nats at step {at.step}, where rounding makes 0.03{rare}",
        "almost certain",
        "policy.logprob_gap_mean=0.05 refuses it at once; look why the engine does not take the weights",
        "num_iterations=1, and vllm_importance_sampling_correction=True",
        at.step,
    )


def duplicates(steps: Sequence[StepRecord]) -> Finding | None:
    """A response stands in its group more often than its own probability allows.

    Given one copy, each of the other G − 1 responses is the same with probability π(o|q), so their number is binomial.
    The tail, times the number of responses looked at, is what chance would show in a run: below 10⁻³ it is none.
    Nothing is said where log-probabilities or texts were not kept: at low entropy equal texts are usual. Texts in which
    bytes are no characters are left out, since many lists of tokens look alike there.
    """
    looked, least = 0, (0.0, 0, 0, 0.0, 0)
    for at, step in enumerate(steps):
        places = {id(one): place for place, one in enumerate(step.responses)}
        for group in by_group(step):
            copies: dict[tuple[str, int | None], list[Response]] = {}
            for one in group:
                if one.text is not None and one.logprob is not None and NO_CHARACTER not in one.text:
                    copies.setdefault((one.text, one.length), []).append(one)
                    looked += 1
            for same in copies.values():
                # The same text may be of other tokens: the likeliest copy is what the others are compared with.
                first = max(same, key=lambda one: one.logprob or 0.0)
                chance = min(math.exp(first.logprob or 0.0), 1.0)
                tail = log_tail(len(group) - 1, len(same) - 1, chance)
                least = min(least, (tail, at, places[id(first)], chance, len(same)))
    tail, at, place, chance, count = least
    by_chance = tail + math.log10(max(looked, 1))
    if by_chance >= CHANCE:
        return None
    step, one = steps[at], steps[at].responses[place]
    size = sum(other.group == one.group for other in step.responses)
    return Finding(
        "duplicates",
        "illness",
        f"A response is there {count} times, which chance does not do: {called(step, place)}, {quoted(one.text)}.",
        f"{count} of {size} responses to that prompt are this text of probability {chance:.1g}; chance would show that "
        + (f"in one of 10^{-by_chance:.0f} such runs" if math.isfinite(by_chance) else "never"),
        "certain",
        "rollout.seed: give each response a seed of its own; a server that keeps answers must not",
        "leave generation_kwargs without a seed: with one, all num_generations are the same draw",
        step.step,
        place,
    )
