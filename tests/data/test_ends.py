"""Where a response ends."""

import json
from types import SimpleNamespace

import pytest
from conftest import POCKET
from transformers import AutoTokenizer

from oblr.batch.types import Sampling
from oblr.data.ends import check_stop, end_tokens, stopped
from oblr.errors import SettingError
from oblr.problem import Completion

#: As chat models have it: beginning, what was said, end.
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def folder(tmp_path):
    """A chat model's files without its weights. 0 ends a text; 61 and 62 open and close a turn; 63 is <|eom|>."""
    tokenizer = AutoTokenizer.from_pretrained(POCKET)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|eom|>"]})
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def ends(folder, template=None):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    return tokenizer.convert_ids_to_tokens(end_tokens(str(folder), tokenizer))


def test_the_tokenizers_end_of_text_comes_first_and_may_be_alone(folder):
    """A Llama's class says 2, which no file does."""
    assert ends(folder) == ["<|endoftext|>"]


def test_all_that_the_files_name_are_ends(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    closing, message = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|eom|>"])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [message, 0]}))
    assert ends(folder) == ["<|endoftext|>", "<|eom|>"]
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": closing}))
    assert ends(folder) == ["<|endoftext|>", "<|im_end|>", "<|eom|>"]
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "text_config": {"eos_token_id": closing}}))
    assert ends(folder) == ["<|endoftext|>", "<|im_end|>", "<|eom|>"]


def test_a_turn_of_the_chat_template_ends_with_one(folder):
    assert ends(folder, TEMPLATE) == ["<|endoftext|>", "<|im_end|>"]
    assert ends(folder, TEMPLATE.replace("}<|im_end|>", "} <|eom|>")) == ["<|endoftext|>", "<|eom|>"]
    assert ends(folder, TEMPLATE.replace("}<|im_end|>", "} done<|eom|>")) == ["<|endoftext|>", "<|eom|>"]
    assert ends(folder, {"one": TEMPLATE, "other": TEMPLATE}) == ["<|endoftext|>"]  # which of them is not said


def test_a_token_that_was_added_is_an_end_although_it_is_called_ordinary(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<END>"])
    tokenizer.save_pretrained(folder)
    (token,) = tokenizer.convert_tokens_to_ids(["<END>"])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": token}))
    assert ends(folder) == ["<|endoftext|>", "<END>"]


@pytest.mark.parametrize("written", ["{", json.dumps({"eos_token_id": "<|im_end|>"})])
def test_a_generation_config_that_cannot_be_read_is_refused(folder, written):
    (folder / "generation_config.json").write_text(written)
    with pytest.raises(SettingError, match=r"generation_config\.json|no token id"):
        ends(folder)


def test_a_stop_string_that_no_text_shows_is_refused(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check_stop("stop", ["+", "im_end"], tokenizer)
    with pytest.raises(SettingError, match=r"^stop: <\|im_end\|> in"):
        check_stop("stop", ["so <|im_end|>"], tokenizer)


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}{{ m.content }}\n{% endfor %}", "{{ raise_exception('no turns') }}"]
)
def test_a_template_that_closes_with_words_or_not_at_all_adds_none(folder, template):
    assert ends(folder, template) == ["<|endoftext|>"]


@pytest.mark.parametrize("token", [2, 5, -1, 10**6])
def test_ids_of_another_tokenizer_are_no_ends(folder, token):
    """What is an ordinary token here would cut responses in their middle."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": token}))
    assert ends(folder) == ["<|endoftext|>"]


LETTERS = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(chr(i) for i in ids if i))


def asked(stop):
    return Sampling(1, 1.0, 64, (0, ord("$")), stop=tuple(stop))


def letters(text, finished=False):
    return Completion([ord(c) for c in text], [-float(i) for i in range(len(text))], finished)


@pytest.mark.parametrize(
    ("text", "stop", "kept", "before"),
    [
        ("one\n\ntwo", ["\n\n"], "one\n\n", "one"),
        ("one\n\ntwo", ["two", "\n\n"], "one\n\n", "one"),
        ("a stop", ["stop"], "a stop", "a "),
        ("stop", ["s", "st"], "s", ""),
        ("abab", ["ba", "ab"], "ab", ""),
    ],
)
def test_a_response_ends_with_the_token_that_completes_a_stop_string(text, stop, kept, before):
    whole = letters(text)
    completion, shown = stopped(LETTERS, whole, asked(stop))
    assert shown == before
    assert completion == Completion(whole.token_ids[: len(kept)], whole.logprobs[: len(kept)], True)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("stop", [[], ["x"]])
def test_a_response_without_a_stop_string_stays_as_it_is(stop, finished):
    whole = letters("one$" if finished else "one", finished)
    assert stopped(LETTERS, whole, asked(stop)) == (whole, "one")


@pytest.mark.parametrize("token", ["pad", "end", "unused", "beyond"])
@pytest.mark.parametrize("stop", [[], ["@"]])
def test_numbers_around_a_token_without_text_do_not_grow_together(token, stop):
    """By the pocket policy's own tokenizer: its padding is no end of the sampling, and can be drawn."""
    tokenizer = AutoTokenizer.from_pretrained(POCKET)
    hidden = {
        "pad": tokenizer.pad_token_id,
        "end": tokenizer.eos_token_id,
        "unused": len(tokenizer) + 12,
        "beyond": 9**9,
    }
    (four,), (two,) = tokenizer.encode("4"), tokenizer.encode("2")
    ids = [four, hidden[token], hidden[token], two]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "42"
    whole = Completion(ids, [-1.0] * 4, False)
    assert stopped(tokenizer, whole, Sampling(1, 1.0, 64, (), stop=tuple(stop))) == (whole, "4\ufffd2")


def test_tokens_without_text_before_and_after_a_response_are_not_shown():
    tokenizer = AutoTokenizer.from_pretrained(POCKET)
    ids, padding = tokenizer.encode("1 + 1"), tokenizer.pad_token_id
    whole = Completion([padding, *ids, padding, padding], [-1.0] * (len(ids) + 3), False)
    assert stopped(tokenizer, whole, Sampling(1, 1.0, 64, (tokenizer.eos_token_id,))) == (whole, "1 + 1")


def test_a_space_that_is_a_token_of_its_own_is_text():
    """As SentencePiece has it: alone it is nothing, between others a space."""
    pieces = {1: "▁4", 2: "▁", 3: "2"}
    tokenizer = SimpleNamespace(
        decode=lambda ids, skip_special_tokens: "".join(pieces.get(i, "") for i in ids).replace("▁", " ").strip()
    )
    assert stopped(tokenizer, Completion([1, 2, 3], [0.0] * 3, False), asked([]))[1] == "4 2"
    assert stopped(tokenizer, Completion([1, 9, 3], [0.0] * 3, False), asked([]))[1] == "4\ufffd2"
