"""``src/settings.py``: print the reference of all settings."""

from oblr.run.places import CONF
from oblr.settings.reference import reference


def main() -> None:
    print(reference(CONF), end="")
