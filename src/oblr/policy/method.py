"""The method of a run in plain words, as its record keeps it and its report shows it."""

from collections.abc import Callable
from typing import Any

import torch

from oblr.policy.step import PolicyModule


def optimizer_of(make: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    """The class of an optimizer, and its settings but for the rate and those that are zero.

    Args:
        make: the class, or a partial of it, as a configuration gives it.
    """
    told = {name: value for name, value in getattr(make, "keywords", {}).items() if name != "lr" and value}
    return getattr(make, "func", make), told


def takes_plain_steps(make: Callable[..., Any]) -> bool:
    """Whether updates are ``−η ĝ``: those of SGD that is told nothing but a rate."""
    kind, told = optimizer_of(make)
    return kind is torch.optim.SGD and not told


def in_words(policy: PolicyModule) -> dict[str, str]:
    """Part of the method → what it is in this run. Parts that a run does without are left out."""
    optimizer, given = optimizer_of(policy.make_optimizer)
    found = {
        "baseline": policy.baseline.words,
        "weights": policy.gradnorm.words if policy.baseline.needs_norms else None,
        "loss": policy.loss.words,
        "learning rate": policy.schedule.words,
        "optimizer": ", ".join([optimizer.__name__, *(f"{name} {value}" for name, value in given.items())]),
        "penalty": None if policy.kl is None else policy.kl.words,
        "adapters": None if policy.lora is None else f"LoRA of rank {policy.lora.rank}",
    }
    return {part: words for part, words in found.items() if words is not None}
