"""What tests need to hold a page against the results that it quotes."""

from collections.abc import Mapping
from typing import Any

from measured import ROOT


def page(name: str) -> str:
    """The text of a page, by its path in the repository."""
    return (ROOT / name).read_text()


def with_ends(figure: Mapping[str, Any], form: str = ".1f") -> str:
    """A figure and its interval, as pages print them."""
    return f"{figure['value']:{form}} [{figure['low']:{form}}, {figure['high']:{form}}]"
