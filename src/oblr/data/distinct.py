"""Whether a policy can tell problems apart by what it is given of them."""

from collections import defaultdict
from collections.abc import Hashable, Sequence

from oblr.data.overlap import question
from oblr.errors import SettingError
from oblr.problem import Problem


def check_distinct(problems: Sequence[Problem], tokens: Sequence[Hashable], setting: str) -> list[str]:
    """Lines for the user on problems that look the same to the policy, though they and their answers differ.

    Args:
        tokens: what the policy reads of each problem: its token ids, or the prompt.
        setting: how the user calls the problems.

    Raises:
        SettingError: those are most of them, or all have the same prompt and different answers.
    """
    groups: dict[Hashable, list[Problem]] = defaultdict(list)
    for problem, ids in zip(problems, tokens, strict=True):
        groups[ids].append(problem)
    lost = [group for group in groups.values() if _differ(group) or (len(groups) == 1 and len(_answers(group)) > 1)]
    if not lost:
        return []
    first = lost[0][0]
    other = next(problem for problem in lost[0] if problem.answer != first.answer)
    count = sum(map(len, lost))
    same = "prompt" if first.prompt == other.prompt else "prompt's tokens"
    line = (
        f"{count:,} of {len(problems):,} problems have the same {same} as another problem: {first.id} and {other.id}, "
        f"for two, ask for {first.answer!r:.60} and {other.answer!r:.60}"
    )
    if 2 * count <= len(problems):
        return [f"{setting}: {line}"]
    if same == "prompt":
        raise SettingError("prompt", f"{setting}: {line}", "let the template, or the chat template, say the question")
    raise SettingError(
        "policy.path", f"{setting}: {line}", "use a policy whose tokenizer knows the problems' characters"
    )


def _differ(group: Sequence[Problem]) -> bool:
    return len(group) > 1 and len({question(problem) for problem in group}) > 1 and len(_answers(group)) > 1


def _answers(group: Sequence[Problem]) -> set[str]:
    return {problem.answer for problem in group}
