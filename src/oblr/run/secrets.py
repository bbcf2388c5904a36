"""What must not be written down: values of the environment, and of settings that are called like secrets.

A configuration that is written keeps its references to the environment, ``${oc.env:HF_TOKEN}``, and has
:data:`MASK` for what was typed as the value of a secret. Both are asked for again when a run goes on.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Stands for a value that is kept nowhere.
MASK = "***"
#: Shorter ones are parts of ordinary words, which hiding them would destroy.
SHORTEST = 6
#: A name of a setting or a variable: ``token``, ``hf_token``, ``api_key``, ``WANDB_API_KEY``, ``db.password``.
_NAME = re.compile(
    r"(?:^|[-_.])(?:token|secrets?|passwords?|passwd|pwd|passphrase|credentials?|bearer|auth|authorization|\w*key)$",
    re.IGNORECASE,
)
#: Names of columns are no secrets, however they are called.
_COLUMN = re.compile(r"(?:^|\.)columns\.[^.]+$")
#: In an address: the user and the password before the machine.
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")
#: What this process knows that it is to keep to itself, and what is said in its place.
_known: dict[str, str] = {}


def is_secret(name: str) -> bool:
    """Whether a setting of this path, or a variable of the environment of this name, is called like a secret."""
    return bool(_NAME.search(name)) and not _COLUMN.search(name)


def keep_secret(value: object, instead: str = MASK) -> None:
    """From now on no line of this process has ``value``."""
    if len(text := str(value)) >= SHORTEST and text != MASK and "${" not in text:
        _known.setdefault(text, instead)


def hidden(text: str) -> str:
    """``text`` with something else in the place of every secret that is known."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, _known[secret])
    return _IN_ADDRESS.sub(MASK, text) if "://" in text else text


def masked(value: Any, path: str = "") -> Any:
    """A configuration, or a setting of this path, without what must not be written down; references stay."""
    if isinstance(value, Mapping):
        return {key: masked(child, f"{path}.{key}" if path else str(key)) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [masked(child, path) for child in value]
    given = value not in (None, "", MASK) and not isinstance(value, bool) and "${" not in str(value)
    if is_secret(path) and given:
        keep_secret(value)
        return _known.get(str(value), MASK)
    return hidden(value) if isinstance(value, str) else value


def masked_overrides(overrides: Sequence[str]) -> list[str]:
    """Overrides, or a command line, in the same way: ``logger.token=***``."""
    return [_override(override) for override in overrides]


def _override(override: str) -> str:
    name, is_one, value = override.partition("=")
    bare = value.strip("'\"")
    if (
        is_one
        and is_secret(name.lstrip("+~-"))
        and bare not in ("", "null", "true", "false", MASK)
        and "${" not in bare
    ):
        keep_secret(bare)
        return f"{name}={MASK}"
    return hidden(override)


def forgotten(config: Any, path: str = "") -> list[str]:
    """Paths of settings whose values were kept nowhere."""
    if isinstance(config, Mapping):
        return [
            name for key, child in config.items() for name in forgotten(child, f"{path}.{key}" if path else str(key))
        ]
    if isinstance(config, list | tuple):
        return [name for child in config for name in forgotten(child, path)]
    return [path] if isinstance(config, str) and MASK in config else []
