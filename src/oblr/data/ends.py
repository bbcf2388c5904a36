"""Where a response ends: at any token that the model's folder calls an end, or before a string of the user's."""

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from oblr.types import Completion

log = logging.getLogger(__name__)
#: Said by an assistant, to see what its chat template closes a turn with.
SAID = "X"


def end_tokens(path: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of the tokens that end a response of the model at ``path``, its tokenizer's end-of-text first.

    The others are those of its generation config, of its config as far as the file says so, and the one that its chat
    template closes an assistant's turn with. What is no special token of the tokenizer is none of them: the ids of
    some configs are those of another tokenizer.
    """
    special = {*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)}
    named = [tokenizer.eos_token_id, *_of_folder(path), *_of_template(tokenizer)]
    return tuple(dict.fromkeys(token for token in named if token in special))


def _of_folder(path: str) -> Iterator[int]:
    """As its files say; classes have defaults that no file has."""
    written: list[dict[str, Any]] = [PretrainedConfig.get_config_dict(path)[0]]
    try:
        written.append(GenerationConfig.from_pretrained(path).to_dict())
    except OSError:
        log.debug("%s has no generation config", path)
    for config in written:
        for part in (config, config.get("text_config") or {}):
            found = part.get("eos_token_id")
            yield from found if isinstance(found, list) else [found] if found is not None else []


def _of_template(tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    """The first special token after what an assistant has said."""
    if tokenizer.chat_template is None:
        return
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": SAID}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except TemplateError as error:
        log.debug("the chat template refuses a turn of the assistant: %s", error)
        return
    rest = tokenizer.encode(text.rpartition(SAID)[2].lstrip(), add_special_tokens=False)
    yield from rest[:1]


def stopped(tokenizer: PreTrainedTokenizerBase, completion: Completion, stop: Sequence[str]) -> tuple[Completion, str]:
    """A completion as far as the token that completes a string of ``stop``, and its text before that string.

    Its tokens have been drawn as ever until there, so their log-probabilities stay those of the response. Without such
    a string it is the whole completion and its text.
    """

    def text(count: int) -> str:
        return str(tokenizer.decode(completion.token_ids[:count], skip_special_tokens=True))

    def ended(count: int) -> bool:
        return any(end in text(count) for end in stop)

    length = len(completion.token_ids)
    if not ended(length):
        return completion, text(length)
    count = bisect_left(range(length + 1), True, key=ended)
    whole = text(count)
    before = whole[: min(whole.index(end) for end in stop if end in whole)]
    return Completion(completion.token_ids[:count], completion.logprobs[:count], finished=True), before
