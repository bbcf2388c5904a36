"""A benchmark of one's own file."""

from collections.abc import Mapping, Sequence
from typing import Literal

from oblr.data.prompts import PromptFormat
from oblr.data.table import TableProblems
from oblr.errors import SettingError
from oblr.evaluation.attempts import Benchmark
from oblr.kinds import Count, Word
from oblr.rewards.base import Reward


def local(
    path: str,
    reward: Reward,
    max_new_tokens: Count | None,
    columns: Mapping[str, str | None] | None = None,
    answer_after: str = "",
    prompt: PromptFormat | None = None,
    name: str | None = None,
    split: str = "test",
    choices: Sequence[str] = (),
    labels: str | None = None,
    prose: Literal["leave_out", "keep"] = "leave_out",
    setting: str = "benchmarks.local",
    readable: Sequence[Word] = (),
    trust: bool = False,
) -> Benchmark:
    """Problems of a table, as :class:`~oblr.data.table.TableProblems` reads it, with a reward and a prompt.

    Args:
        path, columns, answer_after, prompt, name, split, choices, labels: as for
            :class:`~oblr.data.table.TableProblems`.
        reward, max_new_tokens, prose, readable, trust: as for :class:`~oblr.evaluation.attempts.Benchmark`.
        setting: what the user calls the benchmark.

    Raises:
        SettingError: the table's own, of ``setting``.
    """
    try:
        problems = TableProblems(path, name, split, columns, answer_after, prompt, choices=choices, labels=labels)
    except SettingError as error:
        raise error.below("data", setting) from error
    return Benchmark(problems, reward, max_new_tokens, prose, readable, trust)
