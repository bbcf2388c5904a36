"""Train a policy: ``python src/train.py experiment=pocket``."""

from oblr.commands.launch import launch

if __name__ == "__main__":
    launch("train", "oblr.commands.train")
