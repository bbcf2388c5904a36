"""The method of a run in plain words, as its record keeps it and its report shows it."""

from oblr.policy.step import PolicyModule


def in_words(policy: PolicyModule) -> dict[str, str]:
    """Part of the method → what it is in this run. Parts that a run does without are left out."""
    optimizer = policy.make_optimizer
    given = {name: value for name, value in getattr(optimizer, "keywords", {}).items() if name != "lr" and value}
    named = getattr(optimizer, "func", optimizer).__name__
    found = {
        "baseline": policy.baseline.words,
        "weights": policy.gradnorm.words if policy.baseline.needs_norms else None,
        "loss": policy.loss.words,
        "learning rate": policy.schedule.words,
        "optimizer": ", ".join([named, *(f"{name} {value}" for name, value in given.items())]),
        "penalty": None if policy.kl is None else policy.kl.words,
        "adapters": None if policy.lora is None else f"LoRA of rank {policy.lora.rank}",
    }
    return {part: words for part, words in found.items() if words is not None}
