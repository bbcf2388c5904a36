"""The one form in which responses are kept to be read: of a step of training, and of a benchmark."""

import gzip
import json
from collections.abc import Iterable
from typing import Any


def compressed(rows: Iterable[dict[str, Any]]) -> bytes:
    """A line of JSON for each response; the same bytes for the same responses."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return gzip.compress(lines.encode(), compresslevel=3, mtime=0)


def verdict(outcome: str, finished: bool) -> str:
    """``scored``, ``truncated`` by the token limit, or ``timeout`` or ``error`` of the reward, which then is 0."""
    return outcome if outcome != "scored" or finished else "truncated"
