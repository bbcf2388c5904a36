"""Training problems in an order of the user's choice: a curriculum."""

from typing import Literal

from oblr.data.filters import pass_rates
from oblr.data.shuffled import Shuffled
from oblr.data.source import Source
from oblr.errors import SettingError
from oblr.kinds import Seed, checked
from oblr.problem import Problem


@checked("data")
class Ordered(Shuffled):
    """``source`` again and again; problem ``i`` depends on ``i`` and the settings alone, so a run goes on where it was.

    Args:
        source: what is put in order.
        seed: of what is random in it.
        order: of each pass: ``shuffled``; ``given``, as the source has it; ``easy_first`` or ``hard_first``, by the
            pass rates of ``difficulty``, and shuffled where these are equal.
        difficulty: where :class:`~oblr.data.filters.PassRate` finds them.

    Raises:
        SettingError: an order by pass rates without any, or without that of a problem.
    """

    def __init__(
        self,
        source: Source,
        seed: Seed,
        order: Literal["shuffled", "given", "easy_first", "hard_first"] = "shuffled",
        difficulty: str | None = None,
    ):
        super().__init__(source, seed)
        self.order = order
        self.passes: dict[int, list[int]] = {}  # the latest, by pass rates
        if order in ("shuffled", "given"):
            return
        if difficulty is None:
            raise SettingError("data.order", f"{order} needs pass rates", "give data.difficulty.path")
        known = pass_rates(difficulty)
        if unknown := [problem.id for problem in source if problem.id not in known]:
            raise SettingError(
                "data.difficulty.path", f"{unknown[0]} has no pass rate in {difficulty}", "give one of each problem"
            )
        self.rates = [known[problem.id] for problem in source]

    def __getitem__(self, index: int) -> Problem:
        number, place = divmod(index, len(self))
        match self.order:
            case "shuffled":
                return super().__getitem__(index)
            case "given":
                return self.source[place]
        if number not in self.passes:
            sign = -1 if self.order == "easy_first" else 1
            shuffled = self.shuffled(number)
            self.passes = {number: sorted(shuffled, key=lambda i: sign * self.rates[i])}
        return self.source[self.passes[number][place]]
