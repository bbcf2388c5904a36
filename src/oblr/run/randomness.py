"""Random number generators of a process: their states, as a checkpoint keeps them, and seeds for others."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Of Python, NumPy and torch, on the CPU and on this process's GPU; tensors, numbers and strings only."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on where :func:`random_state` was taken."""
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Whatever seeds them or draws from them in the block, all generators are afterwards as they were before."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def derived_seed(*key: object) -> int:
    """A seed below 2⁵⁶ for what ``key`` names, the same in every process; other keys have others."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, key)).encode()).digest()[:7])
