"""Where a response ends: at any token that the model's folder calls an end, or before a string of the user's."""

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from oblr.batch.types import Sampling
from oblr.errors import SettingError, why
from oblr.problem import Completion

log = logging.getLogger(__name__)
#: Said by an assistant, to see what its chat template closes a turn with.
SAID = "It is 7319, as was said."
#: Stands in a response for tokens that have no text: 4 and 2 around one are no 42.
NO_TEXT = "\ufffd"


def end_tokens(path: str, tokenizer: PreTrainedTokenizerBase, setting: str = "policy.path") -> tuple[int, ...]:
    """Ids of the tokens that end a response of the model at ``path``, its tokenizer's end-of-text first.

    The others are those of its generation config, of its config as far as the file says so, and the one that its chat
    template closes an assistant's turn with. An ordinary token of the vocabulary is none of them: the ids of some
    configs are those of another tokenizer.

    Raises:
        SettingError: a file of the model cannot be read, or names as an end what is no token id.
    """
    named, added = [tokenizer.eos_token_id, *_of_folder(path, setting), *_of_template(tokenizer)], _added(tokenizer)
    return tuple(dict.fromkeys(token for token in named if token in added))


def _added(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids that no text has."""
    return {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}


def _of_folder(path: str, setting: str) -> Iterator[int]:
    """As its files say; classes have defaults that no file has."""
    written: list[dict[str, Any]] = [PretrainedConfig.get_config_dict(path)[0]]
    try:
        written.append(GenerationConfig.from_pretrained(path).to_dict())
    except Exception as error:  # of numbers of the wrong kind too, which are compared
        if not isinstance(error, OSError) or (Path(path) / "generation_config.json").exists():
            raise SettingError(
                setting, f"cannot read {path}/generation_config.json: {why(error)}", "mend it"
            ) from error
        log.debug("%s has no generation config", path)
    for config in written:
        for part in (config, config.get("text_config") or {}):
            found = part.get("eos_token_id")
            for token in found if isinstance(found, list) else [found]:
                if not isinstance(token, int | None):
                    raise SettingError(
                        setting, f"the eos_token_id {token!r} of {path} is no token id", "mend its files"
                    )
                if token is not None:
                    yield token


def _of_template(tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    """The first added token after what an assistant has said."""
    if tokenizer.chat_template is None:
        return
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": SAID}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except (TemplateError, TypeError, ValueError) as error:  # one that is used is refused where it is: prompt.chat
        log.debug("the chat template refuses a turn of the assistant: %s", error)
        return
    rest, added = tokenizer.encode(text.partition(SAID)[2], add_special_tokens=False), _added(tokenizer)
    yield from [token for token in rest if token in added][:1]


def check_stop(setting: str, stop: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises SettingError where a string of ``stop`` has an added token, which no text shows."""
    added = _added(tokenizer)
    for end in stop:
        for token in tokenizer.encode(end, add_special_tokens=False):
            if token in added:
                shown = tokenizer.convert_ids_to_tokens(token)
                raise SettingError(setting, f"{shown} in {end!r} is a token that no text shows", "leave it out")


def stopped(tokenizer: PreTrainedTokenizerBase, completion: Completion, sampling: Sampling) -> tuple[Completion, str]:
    """A completion as far as the token that completes a string of ``sampling.stop``, and its text before that string.

    Its tokens have been drawn as ever until there, so their log-probabilities stay those of the response. Without such
    a string it is the whole completion and its text, which has no end token. Where tokens that have no text, such as
    special ones and ids beyond the tokenizer, stand between others, the text has :data:`NO_TEXT`.
    """
    ids, stop = completion.token_ids, sampling.stop
    length = len(ids) - (ids[-1:] != [] and ids[-1] in sampling.end_ids)

    silent = {token for token in set(ids) if not _decoded(tokenizer, [token])}

    def text(count: int) -> str:
        return NO_TEXT.join(_decoded(tokenizer, part) for part in _parts(tokenizer, ids[:count], silent))

    def ended(count: int) -> bool:
        shown = text(count)
        return any(end in shown for end in stop)

    if not stop or not ended(length):
        return completion, text(length)
    count = bisect_left(range(length + 1), True, key=ended)
    whole = text(count)
    before = whole[: min(whole.index(end) for end in stop if end in whole)]
    return completion.ended_after(count), before


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def _parts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], silent: set[int]) -> list[Sequence[int]]:
    """``ids``, cut where tokens between two others add nothing to their text; ``silent`` have no text alone.

    A space that SentencePiece shows only beside others does add something.
    """
    parts, start, place = [], 0, 0
    for quiet, run in groupby(ids, silent.__contains__):
        first, place = place, place + len(list(run))
        if quiet and first and place < len(ids):
            around = [ids[first - 1], ids[place]]
            if _decoded(tokenizer, [around[0], *ids[first:place], around[1]]) == _decoded(tokenizer, around):
                parts.append(ids[start:first])
                start = place
    return [*parts, ids[start:]]
