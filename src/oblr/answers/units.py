"""What a unit is: what pint knows, a currency, or what the question asks how many there are of."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from tokenize import TokenError

import pint

from oblr.answers.lexer import Lexeme

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
_OWN |= {"au": "astronomical_unit", "kmh": "(km/hour)", "kn": "knot"}
_OWN |= {"omega": "ohm", "sec": "second", "secs": "second", "lbs": "pound", "deg": "degree", "l": "liter"}
_OWN |= {name: currency for currency, names in _CURRENCIES.items() for name in (currency, *names)}
#: Units of pint's by these names are rarer than the numbers that they say.
_NUMBERS = frozenset(["quarter", "quarters", "fifth", "fifths", "thou", "k"])
_ANGLES = frozenset(["degree", "degrees", "radian", "radians", "rad", "arcminute", "arcsecond", "gradian"])
ANGLE = "angle"
#: Units that zero of another one is not zero of, and logarithms: nothing is converted into them.
_NO_MULTIPLE = re.compile(r"^degree_[A-Z]|bel|neper")
#: Single letters that are units, in LaTeX that says so; pint has constants by other ones.
_SINGLE = LETTERS | frozenset("dtHSBGM")
#: Short names that are units beside a number without LaTeX that says so; others are variables side by side.
_USUAL = frozenset(
    [
        *(
            "mm",
            "cm",
            "dm",
            "km",
            "nm",
            "mg",
            "kg",
            "ml",
            "mL",
            "cL",
            "dL",
            "kL",
            "Hz",
            "kHz",
            "MHz",
            "GHz",
            "kW",
            "MW",
        ),
        *("mW", "GW", "kJ", "MJ", "kN", "Pa", "kPa", "MPa", "hPa", "eV", "keV", "MeV", "GeV", "mol", "kV", "mV", "mA"),
        *("kA", "Wh", "kWh", "Ah", "mAh", "ft", "in", "yd", "mi", "oz", "lb", "pt", "qt", "gal", "min", "ms", "ns"),
        *("sec", "day", "yr", "yrs", "rad", "mph", "kph", "rpm", "fps", "atm", "psi", "bar", "cal", "ohm", "ha", "cc"),
        *("kB", "KB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "Mb", "Gb", "bit", "bps", "ly", "pc", "kpc", "Mpc"),
        *("dB", "dBm"),
    ]
)
#: Of single letters, with spaces before them, that are units rather than variables.
QUOTIENTS = frozenset(["m/s", "m/s^2", "m/s^{2}"])
_INFORMATION = re.compile(r"([kKMGTPE]i?|kilo|mega|giga|tera|peta|exa)?(?:(B|bytes?)|(bits?)|(bps))")
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
    factor: Fraction = Fraction(1)

    def over(self, other: "Unit") -> Fraction | None:
        """This one in units of the other; None where one cannot be turned into the other."""
        if not self.dimension or not other.dimension:
            return Fraction(1)
        return self.factor / other.factor if self.dimension == other.dimension else None


@lru_cache(maxsize=1024)
def counted(question: str) -> frozenset[str]:
    """The words after "how many" and "number of", in the singular."""
    return frozenset(_singular(word) for match in _COUNTED.finditer(question) for word in match[1].lower().split())


def read_unit(lexemes: list[Lexeme], nouns: frozenset[str]) -> Unit | None:
    """The unit that ``lexemes`` are; None where they are none."""
    words = [lexeme.text for lexeme in lexemes if lexeme.text not in ("{", "}")]
    short = [lexeme.text for lexeme in lexemes if lexeme.kind == "run" and len(lexeme.text) <= 3]
    if all(_singular(word.lower()) in nouns for word in words):
        return Unit(" ".join(words))
    if _singular(words[-1].lower()) == "unit" and set(words[:-1]) <= _POWERS:
        return Unit(" ".join(words))
    if re.fullmatch(r"units? \^ [23]", " ".join(words)):
        return Unit(" ".join(words))
    if any(text not in _USUAL and text.lower() not in _OWN for text in short):
        return None
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
        unit = _registry().Quantity(Fraction(1), _registry().parse_units(expression))
        if any(_NO_MULTIPLE.search(name) for name, _ in unit.unit_items()):
            return Unit(text, str(sorted(unit.unit_items())))
        quantity = unit.to_base_units()
    except (pint.errors.PintError, ValueError, TypeError, AttributeError, SyntaxError, ZeroDivisionError, TokenError):
        return None
    if quantity.dimensionless and not _ANGLES & set(map(str, known)):
        return None
    dimension = ANGLE if quantity.dimensionless else str(sorted(quantity.dimensionality.items()))
    return Unit(text, dimension, Fraction(quantity.magnitude))


def _known(name: str) -> str | None:
    """As pint has it. Case counts where a name is short: mm is not Mm."""
    if name.lower() in _POWERS | _OWN.keys():
        return _OWN.get(name.lower(), name.lower())
    if (name.lower() in _NUMBERS and name != "K") or (len(name) == 1 and name.isalpha() and name not in _SINGLE):
        return None
    if match := _INFORMATION.fullmatch(name[:1] + name[1:].lower() if len(name) > 4 else name):
        prefix = (match[1] or "").replace("K", "k" if match[1] == "K" else "K")
        unit = f"{prefix}information_{'byte' if match[2] else 'bit'}"
        return f"({unit}/second)" if match[4] else unit
    if name in _registry():
        return name
    lower = name.lower()
    return lower if len(name) > 3 and lower in _registry() and _is_word(lower) else None


def _is_word(name: str) -> bool:
    """Whether it begins with no prefix of one letter, whose case counts."""
    return any(name.startswith(prefix) for prefix, _, _ in _registry().parse_unit_name(name))


@cache
def _registry() -> pint.UnitRegistry:
    registry: pint.UnitRegistry = pint.UnitRegistry(non_int_type=Fraction)
    registry.define("information_bit = [information]")  # pint's own has no dimension
    registry.define("information_byte = 8 * information_bit")
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
