"""What of a source is used, and how much of it is left out for which reason."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from oblr.data.prompts import encode, load
from oblr.data.rows import read_rows
from oblr.data.source import Source
from oblr.errors import SettingError
from oblr.kinds import Count, Share, checked
from oblr.problem import Problem


class Filter(Protocol):
    """Says of each problem whether it is kept, and in one line why the others are not; "" where nothing is to say."""

    def __call__(self, problems: Sequence[Problem]) -> tuple[list[bool], str]: ...


class Filtered:
    """The problems of ``source`` that all filters keep.

    Args:
        source: what is filtered.
        setting: what the user calls it, for what is said of it.
        filters: by any name, in order; each sees what the ones before it have kept.
        size: the first so many of those that are kept; None: all.

    Raises:
        SettingError: nothing is left.
    """

    def __init__(
        self, source: Source, setting: str, filters: Mapping[str, Filter] | None = None, size: Count | None = None
    ):
        self.problems, notes = list(source), list(source.notes)
        for choose in (filters or {}).values():
            kept, why = choose(self.problems)
            dropped, total = kept.count(False), len(kept)
            if dropped == total:
                raise SettingError(setting, f"none of {total:,} problems is left: {why}", "drop fewer")
            if why:
                notes.append(f"{setting}: {dropped:,} of {total:,} problems dropped: {why}")
            self.problems = [problem for problem, keep in zip(self.problems, kept, strict=True) if keep]
        self.problems, self.notes = self.problems[:size], notes

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Problem:
        return self.problems[index]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)


class PromptLength:
    """Keeps prompts of at most so many tokens.

    Args:
        tokenizer: whose tokens are counted: folder or hub id of the policy.
        limit: longest prompt, tokens; None: any.
    """

    def __init__(self, tokenizer: str, limit: Count | None):
        self.tokenizer, self.limit = tokenizer, limit

    def __call__(self, problems: Sequence[Problem]) -> tuple[list[bool], str]:
        if self.limit is None:
            return [True] * len(problems), ""
        tokenizer = load(self.tokenizer)
        kept = [len(encode(tokenizer, problem.prompt)) <= self.limit for problem in problems]
        return kept, f"prompts longer than data.max_prompt_tokens={self.limit}"


@checked("data.difficulty")
class PassRate:
    """Keeps problems of a known difficulty.

    Args:
        path: folder of a run of ``src/eval.py``, or JSONL with the ``id`` of a problem and its ``pass_rate``, the share
            of a policy's responses to it that are right, as that writes it for each problem; None: all are kept.
        low: least rate of right answers.
        high: largest rate of right answers.

    Raises:
        SettingError: an empty interval, or a row without one of the two.
    """

    def __init__(self, path: str | None, low: Share, high: Share):
        if low > high:
            raise SettingError("data.difficulty", f"[{low}, {high}] are no pass rates", "use low <= high")
        self.path, self.low, self.high = path, low, high
        self.rates = {} if path is None else pass_rates(path)

    def __call__(self, problems: Sequence[Problem]) -> tuple[list[bool], str]:
        if self.path is None:
            return [True] * len(problems), ""
        rates = [self.rates.get(problem.id) for problem in problems]
        why = f"pass rates outside [{self.low:g}, {self.high:g}]"
        if unknown := [problem.id for problem, rate in zip(problems, rates, strict=True) if rate is None]:
            why += f", or none in {self.path}: {len(unknown):,} of them, {unknown[0]!r} for one"
        if strange := self.rates.keys() - {problem.id for problem in problems}:
            why += f" ({len(strange):,} of its ids are no problem's, {min(strange)!r} for one)"
        return [rate is not None and self.low <= rate <= self.high for rate in rates], why


def pass_rates(path: str) -> dict[str, float]:
    """Pass rates by the ids of problems, from a folder or file as :class:`PassRate` takes it.

    Raises:
        SettingError: a row without one of the two.
    """
    rows, rates = read_rows(path, None, "train"), {}
    for row, place in zip(rows.records, rows.places, strict=True):
        try:
            rates[str(row["id"])] = float(row["pass_rate"])
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(
                "data.difficulty.path", f"{place} has no id with a pass_rate", "give a result of src/eval.py"
            ) from error
    return rates
