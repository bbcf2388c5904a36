r"""What reference answers say that were written for people or programs: worked solutions, lists of one, code spans."""

import ast
import json
import re
from collections.abc import Iterator

from oblr.problem import Completion
from oblr.rewards.answer import BoxedFormat

_ENDED = Completion([], [], finished=True)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARKED = re.compile(
    r"(?:####|\banswer:|\banswer is:?)(?!.*(?:####|\banswer:|\banswer is)).*\S", re.IGNORECASE | re.DOTALL
)
#: Around an answer that is shown as code, or in bold letters.
_DECORATION = " \t\r\n*`"
_CONTROL = re.compile(r"[\x00-\x1f]")


def marked(answer: str) -> str | None:
    r"""The final answer of a worked solution: boxed, in ``<answer>``, or on its last line after a marker, ``####`` say.

    None where nothing is marked, or where several boxes hold different answers.
    """
    if tags := _TAG.findall(answer):
        return str(tags[0]).strip() if len({tag.strip() for tag in tags}) == 1 else None
    if boxes := [box.start() for box in _BOX.finditer(answer)]:
        found = {_last(answer[:end]) for end in [*boxes[1:], len(answer)]}
        return found.pop() if len(found) == 1 else None
    match = _MARKED.search(answer.strip())
    return _last(match[0]) if match and "\n" not in match[0].strip() else None


def listed(answer: str) -> str | None:
    """What stands in a list that is written as JSON or Python writes it, or in quotes; several are parted by commas."""
    text = answer.strip()
    if text[:1] + text[-1:] not in ("[]", "()", '""', "''"):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        items = list(value) if isinstance(value, list | tuple) else [value]
        if items and all(isinstance(item, str | int | float) and str(item).strip() for item in items):
            if any(_CONTROL.search(str(item)) for item in items):  # LaTeX whose backslashes nobody has escaped
                return re.sub(r"^[\[(]?\s*[\"']|[\"']\s*[\])]?$", "", text) if len(items) == 1 else None
            return ", ".join(str(item).strip() for item in items)
    return None


def readings(answer: str) -> Iterator[str]:
    """What an answer may mean where it can be nobody's response as it stands, likely ones first."""
    for read in (marked, listed, lambda text: text.strip(_DECORATION)):
        if (found := read(answer)) and found != answer:
            yield from (inner for inner in [marked(found)] if inner and inner != found)
            yield found


def meant(answer: str) -> str | None:
    """What an answer means in any case, though some response may equal it as it stands; None where it says it itself.

    A mark is no part of an answer, and neither is a list around a number in quotes.
    """
    if (found := marked(answer)) is None and (one := listed(answer)) is not None:
        found = one if re.fullmatch(r"[-+]?[\d,]*\.?\d+", one) and re.search(r"[\"']", answer) else None
    return None if found == answer else found


def _last(text: str) -> str | None:
    return BoxedFormat(require_end=False).extract(text, _ENDED)
