"""Overrides of the command line, before Hydra's grammar reads them."""

import re
from collections.abc import Iterable

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from oblr.errors import SettingError

#: What values may have in them, and that grammar knows in quotes alone; and what is grammar.
IN_QUOTES, GRAMMAR = re.compile(r"[^\x00-\x7f]|[#;&!~^<>`]"), re.compile(r"[\"'\[\]{}()\\]")


def quoted(argument: str) -> str:
    """An override whose value, or each of several, has the quotes that it needs, as for a folder with an accent."""
    name, equals, value = argument.partition("=")
    if not IN_QUOTES.search(value) or GRAMMAR.search(value):
        return argument
    parts = (f"'{part}'" if IN_QUOTES.search(part) else part for part in value.split(","))
    return name + equals + ",".join(parts)


def unreadable(arguments: Iterable[str]) -> SettingError | None:
    """The error of the first override that Hydra's grammar cannot read; None where it reads all of them."""
    parser = OverridesParser.create()
    for argument in arguments:
        name, equals, value = argument.partition("=")
        try:
            if equals and not name.startswith("-"):
                parser.parse_override(argument)
        except HydraException:
            fix = f"where it is a text, put quotes around it: '{name}=\"…\"'"
            return SettingError(name.lstrip("+~"), f"cannot read {value}", fix)
    return None
