"""``src/settings.py``: print the reference of all settings."""

from oblr.run.paths import CONF
from oblr.settings.reference import reference


def main() -> None:
    print(reference(CONF), end="")
