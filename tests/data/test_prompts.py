"""Prompts are formed as configured, and their tokens are those that the policy was trained on."""

import pytest
from byte_tokenizer import BEGIN, END, TURN, byte_tokenizer
from conftest import POCKET

from oblr.data.distinct import check_distinct
from oblr.data.prompts import PromptFormat, encode
from oblr.errors import SettingError
from oblr.problem import Problem


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_a_text_begins_once_and_does_not_end(tmp_path, begins, ends):
    tokenizer = byte_tokenizer(tmp_path, begins, ends)
    bare, begun = encode(tokenizer, "3 + 4"), encode(tokenizer, f"{BEGIN}3 + 4")
    assert tokenizer.decode(bare) == (f"{BEGIN}3 + 4" if begins else "3 + 4")
    assert tokenizer.decode(begun) == f"{BEGIN}3 + 4"


def test_chat_templates(tmp_path):
    tokenizer = byte_tokenizer(tmp_path)
    settings = {"chat": True, "tokenizer": str(tmp_path), "options": {"enable_thinking": False}}
    form = PromptFormat("Add: {prompt}\n", system="Be brief.", **settings)
    text = f"{BEGIN}{TURN}system\nBe brief.{TURN}user\nAdd: 3 + 4{TURN}assistant\n<think></think>"
    assert form("3 + 4") == text
    ids = encode(tokenizer, form("3 + 4"))
    assert tokenizer.decode(ids) == text
    assert [ids.count(tokenizer.convert_tokens_to_ids(token)) for token in (BEGIN, END, TURN)] == [1, 0, 3]
    shown = PromptFormat("Add: {prompt}", examples=[("1 + 1", "2")], **settings)("3 + 4")
    assert shown.startswith(f"{BEGIN}{TURN}user\nAdd: 1 + 1{TURN}assistant\n2{TURN}user\nAdd: 3 + 4{TURN}assistant\n")
    assert PromptFormat(**settings | {"options": None})("?") == f"{BEGIN}{TURN}user\n?{TURN}assistant\n"


def test_turns_of_a_row_are_those_of_the_chat_template(tmp_path):
    """A row's own system message and turns, after the examples, as `apply_chat_template` writes and encodes them."""
    tokenizer = byte_tokenizer(tmp_path)
    turns = [("system", "Be brief."), ("user", "1 + 1"), ("assistant", "2")]
    form = PromptFormat("Add: {prompt}", chat=True, tokenizer=str(tmp_path), examples=[("0 + 1", "1")])
    said = [turns[0], ("user", "Add: 0 + 1"), ("assistant", "1"), *turns[1:], ("user", "Add: 3 + 4")]
    messages = [{"role": role, "content": content} for role, content in said]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert encode(tokenizer, form("3 + 4", turns)) == expected
    clash = PromptFormat(chat=True, tokenizer=str(tmp_path), system="Be long.")
    with pytest.raises(SettingError, match=r"^prompt\.system: the chat has a system message of its own"):
        clash("3 + 4", turns)


def test_examples_come_first_as_text_too():
    form = PromptFormat("Q: {prompt}\nA:", examples=[("1 + 1", " 2"), ("{prompt}", " {x}")])
    assert form("3 + 4") == "Q: 1 + 1\nA: 2\n\nQ: {prompt}\nA: {x}\n\nQ: 3 + 4\nA:"


def test_a_question_is_not_among_its_own_examples(tmp_path):
    byte_tokenizer(tmp_path)
    for settings in ({}, {"chat": True, "tokenizer": str(tmp_path)}):
        form = PromptFormat(examples=[("1 + 1", " Two"), ("1 +  2 ", " Three")], **settings)
        asked = PromptFormat(examples=[("1 + 1", " Two")], **settings)
        assert form("1 + 2") == asked("1 + 2")
        assert "Three" in form("1 + 3")


def test_text_around_the_question_is_literal():
    assert PromptFormat("{prompt}: \\boxed{} {0}")("{x}") == "{x}: \\boxed{} {0}"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"template": "no question"}, "prompt.template"),
        ({"system": "Be brief."}, "prompt.system"),
        ({"examples": [("1 + 1", "2")], "template": "<|user|>{prompt}"}, "prompt.examples"),
        ({"examples": [("1 + 1",)]}, "prompt.examples"),
        ({"chat": True}, "prompt.tokenizer"),
        ({"chat": True, "tokenizer": str(POCKET)}, "prompt.chat"),
    ],
)
def test_bad_settings(settings, setting):
    with pytest.raises(SettingError, match=f"^{setting}: "):
        PromptFormat(**settings)


def test_a_chat_template_that_refuses(tmp_path):
    byte_tokenizer(tmp_path, chat="{{ raise_exception('no system, please') }}")
    with pytest.raises(SettingError, match=r"^prompt\.chat: .*no system, please"):
        PromptFormat(chat=True, tokenizer=str(tmp_path), system="Be brief.")


@pytest.mark.parametrize(
    ("lossy", "setting"),
    [
        ("{{ messages[0].role }}" + TURN, "prompt.chat"),  # says nothing
        (TURN + "{{ messages[0].content }}", "prompt.chat"),  # where a system message comes first
        (TURN + "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "prompt.system"),
        ("{% for m in messages %}{{ m.content[:12] }}{% endfor %}", "prompt.chat"),
        ("{% for m in messages %}{{ m.content | replace('+', '') }}{% endfor %}", "prompt.chat"),
    ],
)
def test_a_chat_template_that_loses_what_is_said(tmp_path, lossy, setting):
    byte_tokenizer(tmp_path, chat=lossy)
    with pytest.raises(SettingError, match=rf"^{setting}: the chat template of {tmp_path} leaves out"):
        PromptFormat(chat=True, tokenizer=str(tmp_path), system="Be brief.")


def test_a_chat_template_may_break_lines_and_forget_what_was_thought(tmp_path):
    byte_tokenizer(
        tmp_path, chat="{% for m in messages %}{{ m.content.split('</think>')[-1] | wordwrap(9) }}{% endfor %}"
    )
    form = PromptFormat(chat=True, tokenizer=str(tmp_path))
    assert form("What is  3 + 4?", [("user", "And 1?"), ("assistant", "<think>x</think>1")])


def test_a_question_that_a_chat_template_cuts(tmp_path):
    """Short ones pass."""
    byte_tokenizer(tmp_path, chat="{% for m in messages %}{{ m.content[-40:] }}{% endfor %}")
    form = PromptFormat(chat=True, tokenizer=str(tmp_path))
    assert form("3 + 4") == "3 + 4"
    with pytest.raises(SettingError, match=r"^prompt\.chat: .*leaves out what the user says"):
        form("3 + 4 and then " * 9)


def problem(name, answer, prompt, question):
    return Problem(name, prompt, answer, {"question": question})


def test_problems_that_look_the_same():
    two = [problem("a", "7", "Add.", "3 + 4"), problem("b", "8", "Add.", "4 + 4")]
    with pytest.raises(SettingError, match=r"^prompt: data\.train: 2 of 2 .* a and b, for two"):
        check_distinct(two, ["Add."] * 2, "data.train")
    known = [Problem("a", "é", "7"), Problem("b", "ö", "8")]
    with pytest.raises(SettingError, match=r"^policy\.path: .*the same prompt's tokens"):
        check_distinct(known, [(0,), (0,)], "data.train")
    with pytest.raises(SettingError, match=r"^prompt: "):  # a source of one's own has no questions
        check_distinct([Problem("a", "Add.", "7"), Problem("b", "Add.", "8")], ["Add."] * 2, "data.train")
    others = [problem(str(i), str(i), str(i), str(i)) for i in range(4)]
    (line,) = check_distinct([*two, *others], ["Add."] * 2 + list("0123"), "data.train")
    assert line.startswith("data.train: 2 of 6 problems have the same prompt")


def test_problems_that_may_look_the_same():
    """One that comes twice, questions of one answer, and one with several in a table of others."""
    again = [problem("a", "7", "3 + 4", "3 + 4")] * 2
    words = [problem("a", "7", "3 + 4", "three and four"), problem("b", "7", "3 + 4", "3 + 4")]
    several = [Problem("a", "√4?", "2"), Problem("b", "√4?", "-2"), Problem("c", "√9?", "3")]
    for some in (again, words, several, []):
        assert check_distinct(some, [one.prompt for one in some], "data.train") == []
