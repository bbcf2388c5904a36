"""Print the reference of all settings: ``python src/settings.py > docs/settings.md``."""

from oblr.commands.launch import ROOT
from oblr.settings.reference import reference

if __name__ == "__main__":
    print(reference(ROOT / "conf"), end="")
