"""How a question becomes the text that a policy reads, and that text its tokens."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from oblr.errors import SettingError, why

#: To see what a chat template makes of a question.
ASKED = "What is 7319 + 4?"


@cache
def load(tokenizer: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id; raises SettingError where there is none."""
    try:
        return AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    except Exception as error:  # tokenizers raise errors of no class of their own
        raise SettingError(
            "prompt.tokenizer", f"{tokenizer} has no tokenizer that can be read: {why(error)}", "name the policy"
        ) from error


class PromptFormat:
    """Question → prompt.

    Args:
        template: what is said; ``{prompt}`` stands for the question, all else is literal.
        chat: whether it is said as a user's message in the tokenizer's own chat template, which then opens the answer.
        tokenizer: folder or hub id of the policy whose chat template it is.
        system: system message; None leaves it to the template.
        examples: [question, response] pairs, responses as they are wanted, which come first as if they had been given:
            turns of the chat, or, as text, each question in the template with its response and an empty line after it.
            One that is the question itself is left out, or its answer would stand in its own prompt.
        options: what else the chat template takes, e.g. ``enable_thinking``.

    Raises:
        SettingError: a template without a question, no such chat template or one that leaves out what it is given, a
            system message without one, examples that are no pairs, or examples in a template that writes a chat's turns
            itself, whose ends are not known.
    """

    def __init__(
        self,
        template: str = "{prompt}",
        chat: bool = False,
        tokenizer: str | None = None,
        system: str | None = None,
        examples: Sequence[tuple[str, str]] = (),
        options: dict[str, Any] | None = None,
    ):
        if "{prompt}" not in template:
            raise SettingError("prompt.template", f"{template!r} has no place for the question", "put {prompt} into it")
        if system and not chat:
            raise SettingError("prompt.system", "text without a chat template has none", "set prompt.chat=true")
        for pair in examples:
            if len(pair) != 2:
                raise SettingError("prompt.examples", f"{list(pair)} is no pair", "give [question, response]")
        if examples and not chat and "<|" in template:
            raise SettingError(
                "prompt.examples",
                "the template writes a chat's turns itself, and examples have no end there",
                "use another prompt with prompt.chat=true",
            )
        self.template, self.chat, self.system, self.options = template, chat, system, options or {}
        self.examples = examples
        if chat:
            if tokenizer is None:
                raise SettingError("prompt.tokenizer", "none is given", "name the policy whose chat template it is")
            self.tokenizer = load(tokenizer)
            if self.tokenizer.chat_template is None:
                raise SettingError(
                    "prompt.chat", f"the tokenizer of {tokenizer} has no chat template", "use prompt.chat=false"
                )
            try:
                self(ASKED)
            except SettingError as error:
                problem = error.problem.replace("the chat template", f"the chat template of {tokenizer}", 1)
                raise SettingError(
                    error.setting, problem, error.fix.replace("the messages", "prompt.system")
                ) from error

    def __call__(self, question: str, turns: Sequence[tuple[str, str]] = ()) -> str:
        """The prompt of a question, after ``turns`` (role, text) that a row has put before it.

        Raises:
            SettingError: there is no place for the turns, or the chat template leaves out what is said.
        """
        examples = [pair for pair in self.examples if _words(pair[0]) != _words(question)]
        if not self.chat:
            if turns:
                raise SettingError(
                    "prompt.chat", "text without a chat template has no place for other turns", "set prompt.chat=true"
                )
            shown = [f"{self.say(example)}{response}\n\n" for example, response in examples]
            return "".join([*shown, self.say(question)])
        own, turns = [turn for turn in turns if turn[0] == "system"], [turn for turn in turns if turn[0] != "system"]
        if own and self.system is not None:
            raise SettingError("prompt.system", "the chat has a system message of its own", "leave prompt.system out")
        before = own if self.system is None else [("system", self.system)]
        for example, response in examples:
            before += [("user", self.say(example)), ("assistant", response)]
        said = [*before, *turns, ("user", self.say(question))]
        messages = [{"role": role, "content": text.strip()} for role, text in said]
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self.options
            )
        except TemplateError as error:
            raise SettingError("prompt.chat", f"the chat template refuses: {error}", "change the messages") from error
        for role in ("user", "system"):
            for message in messages:
                if message["role"] == role and not _within(message["content"], str(text)):
                    raise _left_out(message)
        return str(text)

    def say(self, question: str) -> str:
        return self.template.replace("{prompt}", question)


def _within(part: str, text: str) -> bool:
    """Whether it stands there, however spaces and lines are broken."""
    return part in text or " ".join(part.split()) in " ".join(text.split())


def _left_out(message: dict[str, str]) -> SettingError:
    shown = repr(message["content"] if len(message["content"]) <= 60 else f"{message['content'][:57]}…")
    if message["role"] == "system":
        fix = "leave prompt.system out, or use prompt.chat=false"
        return SettingError("prompt.system", f"the chat template leaves out the system message {shown}", fix)
    fix = "use prompt.chat=false, or a policy.path whose chat template says what the user says"
    return SettingError("prompt.chat", f"the chat template leaves out what the user says, {shown}", fix)


def _words(text: str) -> list[str]:
    return text.lower().split()


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Token ids of a prompt, begun as the tokenizer begins a text, and open at its end.

    A chat template may have written the beginning-of-text token already; a second one would be new to the policy, and
    an end-of-text token, which some tokenizers append, would end the response before it begins.
    """
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False)
    begin = [tokenizer.bos_token_id]
    return begin + ids if ids[:1] != begin and tokenizer.encode(prompt)[:1] == begin else ids


def check_ids(ids: Sequence[int], problem: str, vocabulary: int | None) -> None:
    """Raises SettingError where a prompt has no tokens, or one that the model has no embedding of."""
    if not ids:
        raise SettingError(
            "prompt", f"the prompt of problem {problem} has no tokens to go on from", "use another prompt, or tokenizer"
        )
    if vocabulary is not None and max(ids) >= vocabulary:
        raise SettingError(
            "prompt",
            f"the prompt of problem {problem} has token {max(ids)}, and the model embeds {vocabulary}",
            "leave that token out",
        )
