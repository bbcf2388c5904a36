"""transformers' own generation: slow, anywhere, and a cross-check of vLLM."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from oblr.batch.types import Sampling
from oblr.kinds import Count, Precision
from oblr.policy.loading import load_model
from oblr.problem import Completion
from oblr.rollout.engine import Done, check_fresh
from oblr.rollout.readback import Block, Part, whole
from oblr.run.randomness import kept_random_state


class HFEngine:
    """A second copy of the model that generates with `transformers`.

    Args:
        model: folder or hub id whose architecture and tokenizer are served.
        dtype: precision that the engine computes in.
        batch_size: responses sampled at once.
    """

    apart = in_flight = False

    def __init__(self, model: str | None, dtype: Precision, batch_size: Count = 256):
        self.path = cast(str, model)  # an evaluation knows it in time
        self.dtype, self.batch_size = dtype, batch_size
        self.weight_version: int | None = None

    @kept_random_state()
    def start(self) -> None:
        self.weight_version = None
        self.model = load_model(self.path, self.dtype, setting="rollout.engines.hf.model").eval().requires_grad_(False)
        # generate() takes from the folder's whatever it is not told, a repetition penalty for one.
        self.model.generation_config = GenerationConfig()
        self.model.to("cuda" if torch.cuda.is_available() else "cpu")

    @kept_random_state()
    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        parameters = dict(self.model.named_parameters())
        for name, weight in weights:
            parameters.pop(name).copy_(weight)
        if parameters:
            raise RuntimeError(f"the policy sent no weights for {sorted(parameters)}")
        self.weight_version = version

    @kept_random_state()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Completion]]:
        check_fresh(self)
        rows = [list(prompt) for prompt in prompts for _ in range(sampling.n)]
        own = [seed + j for seed in seeds for j in range(sampling.n)]
        completions: list[Completion] = []
        for start in range(0, len(rows), self.batch_size):
            batch = slice(start, start + self.batch_size)
            completions += self._generate(rows[batch], sampling, own[batch])
            if done is not None:
                for place, completion in enumerate(completions[start:], start):
                    done(*divmod(place, sampling.n), completion)
        return [completions[i : i + sampling.n] for i in range(0, len(completions), sampling.n)]

    def _generate(self, rows: list[list[int]], sampling: Sampling, seeds: list[int]) -> list[Completion]:
        width, device = max(len(row) for row in rows), self.model.device
        pad = sampling.end_ids[0]
        input_ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        greedy = sampling.temperature == 0
        draw = [] if greedy else [*_filters(sampling), _Draw(seeds, device)]
        settings = GenerationConfig(
            do_sample=False,  # the largest score is drawn, not the token
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=list(sampling.end_ids),
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_logits=True,
        )
        out = self.model.generate(
            input_ids, attention_mask=mask, generation_config=settings, logits_processor=LogitsProcessorList(draw)
        )
        tokens = out.sequences[:, width:]
        temperature = 1.0 if greedy else sampling.temperature  # of what was sampled from
        picked = zip(out.logits, tokens.T, strict=True)  # a step at a time: one copy of the logits is enough
        logprobs = torch.stack(
            [(s.float() / temperature).log_softmax(-1).gather(-1, t[:, None])[:, 0] for s, t in picked], dim=1
        )
        return [_cut(ids, lps, sampling.end_ids) for ids, lps in zip(tokens.tolist(), logprobs.tolist(), strict=True)]

    def read(self, blocks: Sequence[Block]) -> list[list[Part]]:
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        picked = [(block, parameters[block.name][block.rows].cpu()) for block in blocks]
        return [[whole(block, rows[:, block.columns] if rows.dim() > 1 else rows) for block, rows in picked]]

    def sleep(self) -> None:
        """Nothing to give back: it has no caches, and its weights are small where this engine is of use."""

    def close(self) -> None:
        self.model = None  # type: ignore[assignment]


class _Draw(LogitsProcessor):
    """Makes the largest score a sample of the softmax, by Gumbel noise from a generator of each row's own."""

    def __init__(self, seeds: Sequence[int], device: torch.device):
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        noise = torch.stack(
            [torch.empty_like(row).exponential_(generator=g) for row, g in zip(scores, self.generators, strict=True)]
        )
        return scores - noise.log()


def _filters(sampling: Sampling) -> list[LogitsProcessor]:
    """Temperature, and what leaves tokens out, in vLLM's order."""
    return [
        TemperatureLogitsWarper(float(sampling.temperature)),
        *([MinPLogitsWarper(sampling.min_p)] if sampling.min_p > 0 else []),
        *([TopKLogitsWarper(sampling.top_k)] if sampling.top_k > 0 else []),
        *([TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []),
    ]


def _cut(ids: list[int], logprobs: list[float], end_ids: tuple[int, ...]) -> Completion:
    """End a row after its first end-of-text; what follows is padding."""
    end = next((t for t, token in enumerate(ids) if token in end_ids), None)
    length = len(ids) if end is None else end + 1
    return Completion(ids[:length], logprobs[:length], finished=end is not None)
