"""What a unit is: what pint knows, a currency, or what the question asks how many there are of."""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from tokenize import TokenError

import pint

from oblr.rewards.tokens import Token

_CURRENCIES = {
    "dollar": ("$", "dollars", "usd"),
    "euro": ("€", "euros", "eur"),
    "sterling": ("£", "gbp"),
    "yen": ("¥", "jpy"),
    "rupee": ("₹", "rupees", "rs", "inr"),
    "yuan": ("cny", "rmb"),
    "peso": ("pesos",),
    "cent": ("¢", "cents"),
}
#: Marks and words that are currencies on their own, before a number, too.
MARKS = frozenset("$€£¥₹")
#: Letters that are read as units beside a number, without LaTeX that says so.
LETTERS = frozenset("msghLlNJWVAKCFT")
_POWERS = frozenset(["square", "cubic", "sq", "cu", "squared", "cubed", "per"])
_OWN = {
    "mph": "(mile/hour)",
    "sq": "square",
    "cu": "cubic",
    "°": "degree",
    "hrs": "hour",
    "hr": "hour",
    "mins": "minute",
}
_OWN |= {"omega": "ohm", "sec": "second", "secs": "second", "lbs": "pound", "deg": "degree", "l": "liter"}
_OWN |= {name: currency for currency, names in _CURRENCIES.items() for name in (currency, *names)}
#: Units of pint's by these names are rarer than the numbers that they say.
_NUMBERS = frozenset(["quarter", "quarters", "fifth", "fifths", "thou", "k"])
_ANGLES = frozenset(["degree", "degrees", "radian", "radians", "rad"])
_NAME = re.compile(r"[A-Za-zµμΩ°$€£¥₹¢]+")
_FACTOR = rf"{_NAME.pattern}(?: ?\^ ?-? ?[1-9])?"
_PRODUCT = rf"{_FACTOR}(?: ?[*/ -] ?{_FACTOR})*"
_TEXT = re.compile(rf"{_PRODUCT}(?: ?[*/] ?\( ?{_PRODUCT} ?\))?")
_COUNTED = re.compile(r"\b(?:how (?:many|much)|number of) ((?:[A-Za-z-]+ ?){1,3})", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """``factor`` to the base units of ``dimension``; what is only counted has neither."""

    text: str
    dimension: str = ""
    factor: float = 1.0

    def over(self, other: "Unit") -> float | None:
        """This one in units of the other; None where one cannot be turned into the other."""
        if not self.dimension or not other.dimension:
            return 1.0
        return self.factor / other.factor if self.dimension == other.dimension else None


@lru_cache(maxsize=1024)
def counted(question: str) -> frozenset[str]:
    """The words after "how many" and "number of", in the singular."""
    return frozenset(_singular(word) for match in _COUNTED.finditer(question) for word in match[1].lower().split())


def read_unit(tokens: list[Token], nouns: frozenset[str]) -> Unit | None:
    """The unit that ``tokens`` are; None where they are none."""
    words = [token.text for token in tokens if token.text not in ("{", "}")]
    if all(_singular(word.lower()) in nouns for word in words):
        return Unit(" ".join(words))
    if _singular(words[-1].lower()) == "unit" and set(words[:-1]) <= _POWERS:
        return Unit(" ".join(words))
    if re.fullmatch(r"units? \^ [23]", " ".join(words)):
        return Unit(" ".join(words))
    return _by_pint(" ".join(words))


@lru_cache(maxsize=4096)
def _by_pint(text: str) -> Unit | None:
    if len(text) > 60 or not _TEXT.fullmatch(text):
        return None
    names = _NAME.findall(text)
    known = [_known(name) for name in names]
    if not all(known):
        return None
    parts = iter(known)
    expression = re.sub(r"\s*\^\s*(-?)\s*(\d)", r"**\1\2", _NAME.sub(lambda _: str(next(parts)), text))
    try:
        quantity = _registry().Quantity(1.0, _registry().parse_units(expression)).to_base_units()
    except (pint.errors.PintError, ValueError, TypeError, AttributeError, SyntaxError, ZeroDivisionError, TokenError):
        return None
    if quantity.dimensionless and not _ANGLES & set(map(str, known)):
        return None
    dimension = "angle" if quantity.dimensionless else str(sorted(quantity.dimensionality.items()))
    return Unit(text, dimension, float(quantity.magnitude))


def _known(name: str) -> str | None:
    """As pint has it. Case counts where a name is short: mm is not Mm."""
    if name.lower() in _POWERS | _OWN.keys():
        return _OWN.get(name.lower(), name.lower())
    if name.lower() in _NUMBERS and name != "K":
        return None
    spellings = (name, name.lower()) if len(name) > 3 else (name,)
    return next((spelling for spelling in spellings if spelling in _registry()), None)


@cache
def _registry() -> pint.UnitRegistry:
    registry: pint.UnitRegistry = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
    for name in _CURRENCIES:
        registry.define(f"{name} = [{name}]" if name != "cent" else "cent = 0.01 * dollar")
    return registry


def warm_up() -> None:
    """pint reads its definitions, which takes a second."""
    _by_pint("meter")


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if re.search(r"(?:s|x|z|ch|sh)es$", word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 2 else word
