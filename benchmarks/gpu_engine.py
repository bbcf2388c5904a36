"""vLLM in this process: start, sync, read-back, how far its log-probabilities are from the policy's, sleep, tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from figures import ROOT, Figure
from gpu_device import DEVICE, GIB, GPU, autocast, random_model, seconds, used_memory
from transformers import AutoConfig, PreTrainedModel

from oblr.batch.packing import pack
from oblr.batch.types import Rollout, Sampling
from oblr.policy.attention import SDPA, choose_attention
from oblr.policy.fused import fuse
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem
from oblr.rollout.readback import NotedWeights
from oblr.rollout.vllm import VLLMEngine
from oblr.run.randomness import derived_seed

POCKET = ROOT / "models" / "pocket"
GROUP_SIZE, CHECKED = 8, 64


def random_policy(size: str) -> tuple[PreTrainedModel, Path]:
    """Of that size's shape, on the device, and a folder with it in bfloat16, which is written once."""
    config = AutoConfig.from_pretrained(ROOT / "conf" / "architecture" / "Qwen" / f"Qwen3-{size}-Base")
    lm = random_model(config, choose_attention(config, GPU, torch.bfloat16), fused=True)
    folder = ROOT / ".cache" / "gpu" / size
    if not folder.exists():
        unfinished = folder.with_suffix(".part")
        lm.save_pretrained(unfinished, state_dict={name: p.detach().bfloat16() for name, p in lm.named_parameters()})
        unfinished.rename(folder)
    return lm, folder


@dataclass
class Pair:
    """A policy and its engine in one process, as in training.

    Attributes:
        size: ``pocket``, or one of Qwen3's.
        mixed: whether the policy computes in bfloat16, as then the engine does.
        longest: tokens of prompt and response.
    """

    size: str
    longest: int
    eager: bool = False
    mixed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.mixed = self.size != "pocket"
        if self.mixed:
            lm, folder = random_policy(self.size)
        else:
            lm, folder = load_model(str(POCKET), "float32", SDPA).to(DEVICE), POCKET
            if GPU:
                fuse(lm)
        self.config, self.scorer = lm.config, PolicyModel(lm, 1.0)
        self.engine = VLLMEngine(str(folder), self.dtype, self.longest, enforce_eager=self.eager)

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.mixed else "float32"

    def sync(self, version: int) -> None:
        """All weights sent, then some numbers of each read back and compared."""
        noted = NotedWeights(self.scorer.weights(getattr(torch, self.dtype)), self.dtype, 0, version)
        self.engine.sync(noted, version)
        noted.compare(self.engine.read(noted.blocks))

    def generate(self, prompts: int, prompt: int, response: int, seed: int) -> list[Rollout]:
        """To random prompts; random policies hardly ever end by themselves. Rewards are 0, 1, 0, 1, …"""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(self.config.vocab_size, (prompts, prompt), generator=generator).tolist()
        sampling = Sampling(GROUP_SIZE, 1.0, response, (self.config.eos_token_id,))
        groups = self.engine.generate(ids, sampling, [derived_seed("gpu", seed, q) for q in range(prompts)])
        return [
            Rollout(Problem("", "", ""), prompt_ids, completion, "", float(i % 2))
            for prompt_ids, group in zip(ids, groups, strict=True)
            for i, completion in enumerate(group)
        ]

    def gaps(self, rollouts: list[Rollout]) -> torch.Tensor:
        """``|log π − log μ|`` of every response token."""
        packed = pack(rollouts).to(DEVICE)
        with torch.no_grad(), autocast(self.mixed):
            return (self.scorer(packed).logprobs - packed.behaviour_logprobs).abs()


def measure(quick: bool, model: str, graphs: str) -> Iterator[Figure | str]:
    prompts, prompt, response = (4, 8, 24) if quick else (128, 64, 64) if model == "pocket" else (64, 64, 256)
    label = f"engine, {model}, {graphs if GPU else 'CPU'}"
    if not GPU:
        yield "CUDA graphs, sleep and their memory are left out: a CPU has none"
    pair = Pair(model, prompt + response, graphs == "eager")
    before = used_memory() if GPU else 0.0
    yield Figure(f"{label}: start", seconds(pair.engine.start), "s")
    awake = used_memory() if GPU else 0.0
    yield Figure(f"{label}: sync and read-back", seconds(lambda: pair.sync(1)), "s")
    found: dict[str, Any] = {}

    def generate(seed: int) -> None:
        found["rollouts"] = pair.generate(prompts, prompt, response, seed)

    generate(1)
    taken = seconds(lambda: generate(2))
    rollouts: list[Rollout] = found["rollouts"]
    completions: list[Completion] = [rollout.completion for rollout in rollouts]
    yield Figure(f"{label}: rollouts", sum(len(one.token_ids) for one in completions) / taken, "tokens/s")
    gaps = pair.gaps(rollouts[:CHECKED])
    for name, gap in {"mean": gaps.mean(), "p99": gaps.quantile(0.99), "max": gaps.max()}.items():
        yield Figure(f"{label}: |Δ log p|, {name}", gap.item(), "nats")
    if GPU:
        yield Figure(f"{label}: memory awake", awake - before, "GiB")
        yield Figure(f"{label}: sleep", seconds(pair.engine.sleep), "s")
        torch.cuda.empty_cache()
        yield Figure(f"{label}: memory asleep", used_memory() - before, "GiB")
        yield Figure(f"{label}: peak of the policy's own memory", torch.cuda.max_memory_allocated() / GIB, "GiB")
    yield Figure(f"{label}: sync and read-back, a second time", seconds(lambda: pair.sync(2)), "s")
    if GPU:
        yield Figure(f"{label}: memory awake again", used_memory() - before, "GiB")
    generate(3)
    again = pair.gaps(found["rollouts"][:CHECKED])
    yield Figure(f"{label}: |Δ log p|, mean, after the second sync", again.mean().item(), "nats")
    pair.engine.close()
