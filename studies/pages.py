"""What tests need to hold a page against the results that it quotes."""

from measured import ROOT


def page(name: str) -> str:
    """The text of a page, by its path in the repository."""
    return (ROOT / name).read_text()
