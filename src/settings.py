"""Print the reference of all settings: ``python src/settings.py``."""

from oblr.commands.scripts import settings

if __name__ == "__main__":
    settings()
