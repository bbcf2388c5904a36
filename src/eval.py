"""Evaluate a model: ``python src/eval.py model=models/pocket benchmarks=[chain_sum]``; see ``conf/eval.yaml``."""

from oblr.commands.launch import launch

if __name__ == "__main__":
    launch("eval", "oblr.commands.evaluate")
