"""Copy the code and the composed configuration: ``python src/snapshot.py FOLDER experiment=pocket``."""

from oblr.commands.scripts import snapshot

if __name__ == "__main__":
    snapshot()
