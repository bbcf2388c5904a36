"""Make a small base model from nothing: tokenizer, random Qwen3, next-token training on a synthetic corpus."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import lightning as L
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from oblr.kinds import Count, Few, Ge, Le, Part, Positive, Rate

END, PAD = "<|endoftext|>", "<|pad|>"
#: Single digits, words with their punctuation, operators with their spaces, white space, anything else.
PIECES = r"\d| ?[A-Za-z]+[:.]?| ?[-+=] ?|\s+|."

Example = tuple[str, str, bool]  # prompt, response, whether end-of-text follows


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text can be encoded, and the frequent pieces of ``texts`` are one token each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)


class CorpusDataset(IterableDataset):
    """Batches of tokenized examples, right-padded; labels are ``-100`` on prompts and padding."""

    def __init__(self, corpus: Iterator[Example], tokenizer: Any, batch_size: int, max_tokens: int):
        self.corpus, self.tokenizer = corpus, tokenizer
        self.batch_size, self.max_tokens = batch_size, max_tokens

    def _encode(self, example: Example) -> tuple[list[int], list[int]]:
        prompt, response, ends = example
        prompt_ids = self.tokenizer.encode(prompt)
        response_ids = self.tokenizer.encode(response) + [self.tokenizer.eos_token_id] * ends
        ids = (prompt_ids + response_ids)[: self.max_tokens]
        return ids, ([-100] * len(prompt_ids) + response_ids)[: self.max_tokens]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while batch := [self._encode(example) for example in islice(self.corpus, self.batch_size)]:
            width = max(len(ids) for ids, _ in batch)
            pad = self.tokenizer.pad_token_id
            yield {
                "input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in batch]),
                "labels": torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in batch]),
            }


class Architecture(TypedDict, total=False):
    """The model's shape.

    Args:
        hidden_size: width.
        intermediate_size: width of the MLPs.
        num_hidden_layers: blocks.
        num_attention_heads: heads of queries.
        num_key_value_heads: heads of keys and values.
        head_dim: width of a head.
        max_position_embeddings: context, tokens.
        tie_word_embeddings: whether embedding and head are one matrix.
        rope_theta: base of the positions' wavelengths.
    """

    hidden_size: Few
    intermediate_size: Few
    num_hidden_layers: Few
    num_attention_heads: Few
    num_key_value_heads: Few
    head_dim: Few
    max_position_embeddings: Few
    tie_word_embeddings: bool
    rope_theta: Positive


class PretrainModule(L.LightningModule):
    """Next-token training with AdamW and a one-cycle cosine rate.

    Args:
        corpus: the training texts, an endless iterator of examples.
        tokenizer_examples: how many of them the tokenizer is made of.
        vocab_size: of the tokenizer: bytes, two special tokens, and merges.
        architecture: fields of ``Qwen3Config``.
        batch_size: texts a step.
        max_tokens: longest text, tokens; longer ones are cut.
        lr: largest learning rate.
        steps: length of the run, steps.
    """

    def __init__(
        self,
        corpus: Annotated[Iterator[Example], Part("oblr.data")],
        tokenizer_examples: Count,
        vocab_size: Annotated[int, Ge(258), Le(2**20)],
        architecture: Architecture,
        batch_size: Few,
        max_tokens: Few,
        lr: Rate,
        steps: Count,
    ):
        super().__init__()
        texts = (prompt + response for prompt, response, _ in islice(corpus, tokenizer_examples))
        self.tokenizer = train_tokenizer(texts, vocab_size)
        config = Qwen3Config(
            vocab_size=len(self.tokenizer),
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
            bos_token_id=None,
            **cast(dict[str, Any], architecture),
        )
        self.model = Qwen3ForCausalLM(config).train()
        self.corpus, self.batch_size, self.max_tokens = corpus, batch_size, max_tokens
        self.lr, self.steps = lr, steps

    def train_dataloader(self) -> DataLoader:
        return DataLoader(CorpusDataset(self.corpus, self.tokenizer, self.batch_size, self.max_tokens), batch_size=None)

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.lr, total_steps=self.steps, pct_start=0.05
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def export(self, folder: Path) -> None:
        """Write model and tokenizer in Hugging Face format (safetensors, float32)."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
