"""Load, score with, shard and export a Hugging Face causal LM."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from oblr.errors import SettingError
from oblr.gradnorm.head import head_scores, needs_slices
from oblr.gradnorm.precision import no_autocast
from oblr.packing import PackedBatch
from oblr.types import TokenScores


def load_config(path: str) -> PretrainedConfig:
    """Raises SettingError where ``path`` is neither a model folder nor a model id that the hub gives out."""
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        if Path(path).exists():
            raise SettingError(
                "policy.path", f"{path} is not a model", "give a Hugging Face model folder with a config.json"
            ) from error
        raise SettingError(
            "policy.path",
            f"no folder {path}, and the hub does not give out a model of that name",
            "check name and network",
        ) from error


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Raises SettingError where there is no tokenizer or it has no end-of-text token."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise SettingError(
            "policy.path", f"{path} has no tokenizer", "add the tokenizer's files to the folder"
        ) from error
    if tokenizer.eos_token_id is None:
        raise SettingError(
            "policy.path",
            f"the tokenizer of {path} has no end-of-text token",
            "set its eos_token: responses end with it",
        )
    return tokenizer


def load_model(path: str, dtype: str) -> PreTrainedModel:
    """The causal LM at ``path`` in ``dtype`` ("float32" or "bfloat16"), in training mode, without dropout."""
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="sdpa", attention_dropout=0.0
    )
    return model.train()


class TokenScorer(nn.Module):
    """A causal LM as the step sees it: packed sequences in, log-probabilities of the response tokens out.

    Args:
        lm: the model.
        temperature: of the behaviour policy; logits are divided by it.
    """

    def __init__(self, lm: PreTrainedModel, temperature: float):
        super().__init__()
        self.lm, self.temperature = lm, temperature

    def forward(self, packed: PackedBatch) -> TokenScores:
        hidden = self.lm.base_model(
            input_ids=packed.input_ids, position_ids=packed.position_ids, use_cache=False
        ).last_hidden_state
        hidden, head = hidden.flatten(0, 1)[packed.predictors], self.lm.get_output_embeddings()
        if needs_slices(head, len(hidden)):
            return head_scores(head, hidden, packed.targets, self.temperature)
        logprobs = head(hidden).float().div_(self.temperature).log_softmax(-1)
        with torch.no_grad(), no_autocast(logprobs):  # without a second array of the logits' size
            probabilities = logprobs.exp()
            entropy = -torch.einsum("nv,nv->n", probabilities, logprobs)
            collision = torch.linalg.vector_norm(probabilities, dim=-1).square()
        logprobs = logprobs.gather(-1, packed.targets[:, None]).squeeze(-1)
        return TokenScores(logprobs, entropy, collision, hidden.detach())

    def shard(self, mesh: DeviceMesh, **options: Any) -> None:
        """FSDP2: each transformer block a unit of its own, embedding, last norm and head in the root's.

        Args:
            options: of `fully_shard`.
        """
        for block in cast(nn.ModuleList, self.lm.base_model.layers):
            fully_shard(block, mesh=mesh, **options)
        fully_shard(self, mesh=mesh, **options)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters by their checkpoint names; a tied head is not repeated. Collective where sharded."""
        for name, p in self.lm.named_parameters():
            yield name, p.full_tensor().detach() if isinstance(p, DTensor) else p.detach()

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a folder that transformers and vLLM load. Collective where sharded; only rank 0 writes."""
        weights = {name: weight.cpu() for name, weight in self.weights()}
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            self.lm.save_pretrained(folder, state_dict=weights)
            tokenizer.save_pretrained(folder)
