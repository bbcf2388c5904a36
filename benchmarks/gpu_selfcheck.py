"""A run's own check at start-up of a policy on this device: the largest difference, what may be rounding, seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from figures import ROOT, Figure, at_most
from gpu_device import DEVICE, GIB, GPU, autocast, random_model, seconds
from roofline import BATCHES, shape
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from oblr.errors import SettingError
from oblr.policy import rounding, selfcheck
from oblr.policy.attention import SDPA, choose_attention
from oblr.policy.autograds import Gaps
from oblr.policy.fused import fuse
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel


def policy(model: str, quick: bool) -> tuple[PreTrainedModel, bool]:
    """On the device, and whether its layers compute in bfloat16; a 4B is random, and small where ``quick``."""
    if model == "pocket":
        lm = load_model(str(ROOT / "models" / "pocket"), "float32", SDPA).to(DEVICE)
        if GPU:
            fuse(lm)
        return lm, False
    architecture = ROOT / "conf" / "architecture" / "Qwen" / f"Qwen3-{model}-Base"
    config = shape(128, 4, 512, True) if quick else AutoConfig.from_pretrained(architecture)
    return random_model(config, choose_attention(config, GPU, torch.bfloat16), fused=GPU), True


def flat(gaps: Gaps) -> Tensor:
    """All of them in a row."""
    return torch.cat([torch.tensor([gaps.logs, gaps.norms]).double(), gaps.gradients.cpu(), gaps.parts.cpu()])


@contextmanager
def noted() -> Iterator[dict[str, tuple[float, float]]]:
    """By precision, the difference that is the largest share of its limit, and that limit."""
    found: dict[str, tuple[float, float]] = {}
    of = rounding.Limits.of

    def noting(self: rounding.Limits, gaps: Gaps) -> Gaps:
        limits = of(self, gaps)
        precision = "float32" if self.floor == rounding.FLOORS[torch.float32] else "bfloat16"
        differences, allowed = flat(gaps), flat(limits)
        worst = int((differences / allowed).argmax())
        one = differences[worst].item(), allowed[worst].item()
        found[precision] = max(found.get(precision, (0.0, 1.0)), one, key=lambda pair: pair[0] / pair[1])
        return limits

    with patch.object(rounding.Limits, "of", noting):
        yield found


def measure(quick: bool, model: str) -> Iterator[Figure | str]:
    lm, mixed = policy(model, quick)
    policy_model, longest = PolicyModel(lm, 1.0), BATCHES["2048"].longest if mixed else None
    refused: list[SettingError] = []
    yield f"attention: {lm.config._attn_implementation}"

    def check() -> None:
        try:
            selfcheck.check(policy_model, torch.bfloat16 if mixed else torch.float32, longest, policy_model.longest_row)
        except SettingError as error:
            refused.append(error)

    with noted() as found, autocast(mixed):
        taken = seconds(check)
    label = f"self-check, {model}"
    yield Figure(f"{label}: seconds", taken, "s")
    for precision, (difference, limit) in found.items():
        name = f"{label}, in {precision}: largest difference"
        yield Figure(name, difference, "")
        yield Figure(f"{name}: its limit", limit, "")
        yield at_most(f"{name} over its limit", difference / limit, "", 1.0)
    if GPU:
        yield Figure(f"{label}: peak memory", torch.cuda.max_memory_allocated() / GIB, "GiB")
    if refused:
        raise refused[0]
