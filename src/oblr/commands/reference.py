"""``src/settings.py``: print the reference of all settings."""

from oblr.commands.launch import ROOT
from oblr.settings.reference import reference


def main() -> None:
    print(reference(ROOT / "conf"), end="")
