"""Qwen3's real shapes on the meta device: every parameter by name and size, and no memory."""

import torch
from conftest import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

from oblr.policy.model import PolicyModel

SIZES = {"4B": (4_022_468_096, True), "8B": (8_190_735_360, False)}  # parameters, and whether the head is tied


def architecture(size):
    return AutoConfig.from_pretrained(ROOT / "conf" / "architecture" / "Qwen" / f"Qwen3-{size}-Base")


def on_meta(size):
    with torch.device("meta"):
        return PolicyModel(AutoModelForCausalLM.from_config(architecture(size), dtype=torch.float32), 1.0)
