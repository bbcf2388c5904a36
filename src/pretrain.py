"""Train a small base model from nothing: ``python src/pretrain.py experiment=pocket_base``."""

from oblr.commands.scripts import pretrain

if __name__ == "__main__":
    pretrain()
