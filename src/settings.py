"""Print the reference of all settings: ``python src/settings.py > docs/settings.md``."""

from oblr.commands.reference import main

if __name__ == "__main__":
    main()
