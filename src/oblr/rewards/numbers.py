"""Numbers as people and models write them, read exactly and without working anything out."""

import re
from dataclasses import dataclass
from fractions import Fraction

_SPACES = re.compile(r"\\[,;: ]|~|\\quad|\\qquad|\s+")
_NOTHING = re.compile(
    r"\\!|\\\$|\$|\\[()\[\]]|\\(?:left|right|displaystyle)(?![A-Za-z])|\^\\circ|\^\{\\circ\}|°|\\degree"
)
_SMALL_FRACTION = re.compile(r"\\frac ?(?:\{([^{}]*)\}|(\d)) ?(?:\{([^{}]*)\}|(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|operatorname) ?\{([^{}]*)\}")
_NUMBER = re.compile(
    r"""(?: [A-Za-z]\w{0,9}\ ?=\ ? )?                         # x =
        (?P<sign>[-+]?)\ ?[€£¥]?\ ?
        (?: (?: (?P<whole>\d+)\ )? (?P<over>-?\d+)\ ?/\ ?(?P<under>\d+)
          | (?P<integer>\d{1,3}(?:,\d{3})+|\d*) (?P<decimals>\.\d+)?
            (?:\ ?\\(?:times|cdot)\ ?10\^\{?(?P<power>-?\d{1,3})\}?)?
        )
        \ ? (?: (?P<percent>%|percent|<percent>)
              | (?P<unit> (?: <[^<>\d]*> | [A-Za-z]{3,}|cm|mm|km|kg|ft ) (?:\ [A-Za-z/ ]+)? ) \ ?(?:\^\{?[23]\}?)?
            )? """,
    re.VERBOSE,
)
#: What a unit does not contain: such words after an answer change it, or take it back.
_NO_UNIT = re.compile(
    r"\d|\b(?:hundred|thousand|million|billion|trillion|dozen|half|halves|thirds?|quarters?|times|over|plus|minus|squared"
    r"|cubed|factorial|mod|modulo|base|power|sqrt|log|sin|cos|tan|exp|pi|or|and|not|to|but|if|is|unless|else|otherwise"
    r"|perhaps|maybe)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class WrittenNumber:
    """``value`` is what stands there: 8 in "8 %"."""

    value: Fraction
    percent: bool

    def agrees(self, other: "WrittenNumber") -> bool:
        """Exactly equal, as a share or in percent; a rounded decimal is close enough where this one has no end."""
        values = {other.value, other.value / 100} if other.percent and not self.percent else {other.value}
        if self.percent and not other.percent:
            values.add(other.value * 100)
        return self.value in values or (self._endless and abs(other.value - self.value) <= abs(self.value) / 10**6)

    @property
    def _endless(self) -> bool:
        return bool(10 ** self.value.denominator.bit_length() % self.value.denominator)


def tidy(answer: str) -> str:
    r"""LaTeX without what does not count: dollars, spacing, ``\left``, degrees, a final period."""
    answer = answer.replace("−", "-").replace("{,}", ",").replace(r"\%", "%").replace("×", r"\times ")
    answer = re.sub(r"\\[dtc]frac", r"\\frac", answer)
    answer = _NOTHING.sub("", re.sub(r",\\! *", ",", answer))
    return _SPACES.sub(" ", answer).strip(" *`").rstrip(" .")


def words(latex: str) -> str:
    r"""``<…>`` for ``\text{…}``."""
    return _TEXT.sub(lambda text: f" <{text[1].strip()}> ", latex).strip()


def hedged(latex: str) -> bool:
    r"""Whether a ``\text{…}`` says more than a unit or a name."""
    return any(_NO_UNIT.search(text[1]) for text in _TEXT.finditer(latex))


def read_number(latex: str) -> WrittenNumber | None:
    """The number that tidy ``latex`` is, with or without a unit; None where it is anything else."""
    text = _SMALL_FRACTION.sub(lambda f: f" {f[1] or f[2]}/{f[3] or f[4]} ", words(latex))
    match = _NUMBER.fullmatch(re.sub(" +", " ", text).strip())
    if match is None or _NO_UNIT.search(match["unit"] or ""):
        return None
    if match["under"]:
        if not int(match["under"]) or (match["whole"] and match["over"].startswith("-")):
            return None
        value = Fraction(int(match["over"]), int(match["under"])) + int(match["whole"] or 0)
    elif match["integer"] or match["decimals"]:
        value = Fraction((match["integer"].replace(",", "") or "0") + (match["decimals"] or ""))
        value *= Fraction(10) ** int(match["power"] or 0)
    else:
        return None
    return WrittenNumber(-value if match["sign"] == "-" else value, match["percent"] is not None)
