"""Train a small base model from nothing: ``python src/pretrain.py experiment=pocket_base``."""

from oblr.commands.launch import launch

if __name__ == "__main__":
    launch("pretrain", "oblr.commands.pretrain")
