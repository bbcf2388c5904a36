"""Train a policy: ``python src/train.py experiment=pocket``."""

from oblr.commands.scripts import train

if __name__ == "__main__":
    train()
