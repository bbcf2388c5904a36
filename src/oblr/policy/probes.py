"""A few short sequences for the self-check: what packing, capture and head have to tell apart, in a hundred tokens."""

import torch
from torch import nn

from oblr.batch.types import Rollout
from oblr.problem import Completion, Problem

#: Tokens of each sequence. They fill two rows, two sequences each, but for one token of padding.
SIZES = (24, 26, 25, 24)
#: Where their responses begin.
PROMPTS = (7, 1, 13, 4)
#: Distinct tokens that they are made of: each comes up several times, in prompts and responses.
DISTINCT = 16


def probes(embedding: nn.Embedding) -> list[Rollout]:
    """Of tokens that the embedding has and trains; the same on every rank.

    Behaviour log-probabilities are 0, so that ``log ρ`` is ``log π``.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(embedding.num_embeddings, (DISTINCT,), generator=generator).tolist()
    pool = [token for token in drawn if token != getattr(embedding, "padding_idx", None)]
    found = []
    for size, prompt in zip(SIZES, PROMPTS, strict=True):
        ids = [pool[i] for i in torch.randint(len(pool), (size,), generator=generator)]
        response = Completion(ids[prompt:], [0.0] * (size - prompt), finished=True)
        found.append(Rollout(Problem("", "", ""), ids[:prompt], response, "", 0.0))
    return found
