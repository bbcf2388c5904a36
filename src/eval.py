"""Evaluate a model: ``python src/eval.py model=models/pocket benchmarks=[chain_sum]``; see ``conf/eval.yaml``."""

from oblr.commands.scripts import evaluate

if __name__ == "__main__":
    evaluate()
