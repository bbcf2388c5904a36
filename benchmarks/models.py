"""Which causal language models of transformers are trained right, and which are refused, and why?

    python benchmarks/models.py [--quick] [--only TYPE ...]

Every type that transformers' ``AutoModelForCausalLM`` knows is built with random weights from a tiny configuration, and
goes, in a process of its own, through what a run does: `load`'s preparation, the self-check, and one scored
micro-batch of four packed sequences in both orders of passes. The truth is independent of the self-check: float64
autograd in the model's own forward, one sequence at a time.

- **right**: log-probabilities, ``n_i`` and each parameter's gradient are the truth's, up to float32's rounding.
- **refused**: one line ends the run before its first step; it is given.
- **wrong**: neither. There must be none.
- **not built**: no tiny model could be made, or its own forward fails, which is no fault of ours; the reason is given.

Then 50 models that nobody has written: random mixtures of axis orders, odd numbers of heads, shared layers and
parameters, scales, biases and norms (`random_models.py`). Writes ``docs/models.md`` too. ``--quick``: a dozen types.
"""
