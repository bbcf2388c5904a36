"""Prompts that are chats: lists of messages with ``role`` and ``content``."""

from collections.abc import Sequence
from typing import Any

from oblr.data.cells import said
from oblr.errors import SettingError

ROLES = ("system", "user", "assistant")


def chat(messages: Sequence[Any], path: str, place: str) -> tuple[str, list[tuple[str, str]]]:
    """The question, which is the last message, and role and text of those before it.

    Raises:
        SettingError: it is no chat, or does not end with the user's message.
    """
    turns = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise SettingError(
                "data.columns",
                f"{place} has no message of {', '.join(ROLES)} in column {f'{path}.{number}'!r}",
                "give messages with role and content",
            )
        if message["role"] == "system" and number:
            raise SettingError(
                "data.columns", f"{place} has a system message in column {f'{path}.{number}'!r}", "put it first"
            )
        if message.get("tool_calls"):
            raise SettingError(
                "data.columns", f"{place} has a call of a tool in column {f'{path}.{number}'!r}", "leave such rows out"
            )
        turns.append((message["role"], said(message.get("content"), f"{path}.{number}.content", place)))
    if not turns or turns[-1][0] != "user":
        raise SettingError(
            "data.columns",
            f"{place} has a chat that does not end with the user in column {path!r}",
            "leave out the end",
        )
    return turns[-1][1], turns[:-1]
