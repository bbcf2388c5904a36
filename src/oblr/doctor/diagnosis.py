"""All findings of a run, and the lines in which they are said."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from textwrap import wrap

from oblr.doctor import computation, moving, rates, rewarding, tuning
from oblr.doctor.findings import Finding, Test, percent, rewards
from oblr.statistics.log import StepRecord

#: In the order in which they are said: causes before what may follow from them.
TESTS: tuple[Test, ...] = (
    computation.foreign_gradient,
    computation.coarse_ratio,
    computation.stale_engine,
    computation.duplicates,
    rewarding.odd_reward,
    rewarding.paid_for_nothing,
    rates.rate_large,
    rates.rate_small,
    tuning.pooled_baseline,
    tuning.large_groups,
    tuning.few_prompts,
    moving.policy_broke,
    moving.one_response,
    rewarding.dead_groups,
    moving.truncated,
    moving.entropy_collapse,
    moving.one_hand,
    tuning.many_prompts,
    tuning.easy_groups,
    tuning.weighted_baseline,
    tuning.clip,
)
#: Of a policy that has broken; where one of these is found, that is said in its place.
CAUSES = {"rate_large", "large_groups", "few_prompts"}
#: Findings that are said at once.
MOST = 5


def diagnose(steps: Sequence[StepRecord]) -> list[Finding]:
    """At most five findings, the first the likeliest cause; of a sick run, illnesses alone. Empty: it is healthy."""
    found = [one for test in TESTS if (one := test(steps)) is not None]
    if {one.name for one in found} & CAUSES:
        found = [one for one in found if one.name != "policy_broke"]
    return ([one for one in found if one.kind == "illness"] or found)[:MOST]


def lines(steps: Sequence[StepRecord], findings: Sequence[Finding], ours: bool, width: int = 110) -> Iterator[str]:
    """The findings as lines of text for a terminal; ``ours``: whether advice names settings of this program."""
    findings = [one for one in findings if ours or one.trl]
    if not findings:
        yield healthy(steps)
        return
    for number, one in enumerate(findings, start=1):
        yield from wrap(one.said, width, initial_indent=f"{number}. ", subsequent_indent="   ")
        for name, text in (("why", f"{one.evidence}."), ("sure", one.sure), ("do", one.fix if ours else one.trl)):
            yield from wrap(text, width, initial_indent=f"   {name:<6}", subsequent_indent=" " * 9)


def sentences(steps: Sequence[StepRecord], findings: Sequence[Finding], ours: bool) -> list[str]:
    """The same, a line for each finding, however long."""
    advice = [(one, one.fix if ours else one.trl) for one in findings]
    told = [f"{one.said} Why: {one.evidence}. Sure: {one.sure}. Do: {fix}" for one, fix in advice if fix]
    return told or [healthy(steps)]


def healthy(steps: Sequence[StepRecord]) -> str:
    """That nothing was found, and by what numbers."""
    said = [f"healthy: nothing found in {len(steps)} steps"]
    first, last = rewards(steps[:1]), rewards(steps[-1:])
    if first and last:
        said.append(f"reward {fmean(first):.3g} → {fmean(last):.3g}")
    signal = tuning.signal_share(steps)
    if signal.low > 0:
        said.append(f"{percent(signal.value)} of what steps move is signal")
    return "; ".join(said)
