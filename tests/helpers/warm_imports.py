"""Loaded by the server that `warm` forks from: what scripts import, and is slow; none of it starts a thread that works.

Last, all of it is taken out of the garbage collector's sight, which would go through it in every run, page by page.
"""

import atexit
import contextlib
import gc
import importlib
import os

MODULES = [
    *(
        "pytest",
        "xdist",
        "hypothesis",
        "lightning",
        "transformers",
        "torchmetrics",
        "hydra.main",
        "torch.utils.tensorboard",
        "matplotlib.pyplot",
    ),
    *("datasets", "reasoning_gym", "mpmath", "pint", "torch.distributed.checkpoint"),
    *("vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen3"),
]

with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing), contextlib.redirect_stdout(nothing):
    for name in MODULES:
        importlib.import_module(name)
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # what ends in full is to leave nothing behind
