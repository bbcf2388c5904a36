r"""Where a response states its final answer: in boxes, in tags, after a marker, or in its conclusion.

What is stated twice must be the same: answers side by side are joined, so that one of two never counts. They are
joined as members of a chain of equalities, which is its last member where all are equal and no answer where not; where
"or", "and" or a comma stands between them, or one has no digit, as a list.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from oblr.answers.conclusions import concluded, core, last_step, predicate, said_after

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:(?P<box>\{)|(?P<bare>[^\s{}$\\A-Za-z]+))")
_BOXES_AND_BRACES = re.compile(rf"{_BOX.pattern}|\\.|[{{}}]", re.DOTALL)
_TAG = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_ENDS = "</think>"
#: In a box that is yet to be filled.
_BLANK = re.compile(
    r"(?:[\s${}~?_.…]|\\(?:text|mathrm)(?![A-Za-z])|\\[,;:! ]|\\(?:q?quad|l?dots|cdots)(?![A-Za-z]))*"
    r"(?:(?:the |your |my )?(?:final )?answer(?: here)?)?[\s${}.…]*",
    re.IGNORECASE,
)
_FRAMES = re.compile(r"\\[()\[\],;:! ]|\\q?quad(?![A-Za-z])|\\text(?:bf)?(?![A-Za-z])|[\s$.,;:*_#(){}\[\]|&\\-]+")
#: All that stands between two answers that are given side by side.
_BETWEEN = frozenset(
    [
        "and",
        "or",
        "either",
        "maybe",
        "perhaps",
        "possibly",
        "alternatively",
        "also",
        "else",
        "otherwise",
        "both",
        "so",
        "thus",
        "therefore",
        "hence",
        "then",
        "the",
        "my",
        "final",
        "correct",
        "answer",
        "answers",
        "is",
        "are",
        "be",
        "it",
        "that",
        "i",
        "e",
        "=",
        "≈",
    ]
)
_LIST = re.compile(
    r"^[\s$).\\\]]*[,;][\s$(\\\[]*$|\b(?:and|or|either|maybe|perhaps|possibly|alternatively|also|else|otherwise|both)\b",
    re.I,
)
_DOUBT = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|alternatively|otherwise|could|might)\b", re.I)
_SECOND_THOUGHT = re.compile(
    r"\b(?:wait|actually|no|not|wrong|mistake|error|re-?\w*check\w*|reconsider\w*|correct\w*|instead|hmm)\b", re.I
)
#: Of one side by side with another, characters between them.
_NEAR = 120
#: Markers from the end that are looked at, and characters behind each.
_MARKERS, _LONGEST = 20, 4000
_STEP = re.compile(r"\\text\{[^{}]* |\\(?:Right|Long|implies|begin|approx|quad)|\\\\")


class Statement(NamedTuple):
    """``text`` is the answer that stands at ``start`` to ``end`` of the response, with its frame."""

    start: int
    end: int
    text: str


def final_answer(response: str) -> str | None:
    """The answer, or None where the response gives none."""
    _, _, said = response.rpartition(_THOUGHT_ENDS)
    text = said if said.strip() else response
    frames = _frames(text)
    if frames is None:
        return None
    if not frames:
        return _joined(text, list(_markers(text))) or concluded(text)
    last = frames[-1]
    rest = text[last.end :]
    again = [one for one in _markers(rest) if _plain(one.text)][-1:]
    if (other := said_after(rest)) is not None and _plain(other := core(other)):
        again.append(Statement(last.end, last.end, other))
    return _together([_joined(text, frames) or "", *[one.text for one in again]], " = ")


def _frames(text: str) -> list[Statement] | None:
    """Of filled boxes, and tags; None where a box is open at the end."""
    boxes = _boxes(text)
    if boxes is None:
        return None
    tags = [Statement(*tag.span(), _in_tag(tag[1])) for tag in _TAG.finditer(text)]
    tags = [tag for tag in tags if not _BLANK.fullmatch(tag.text)]
    outside = [box for box in boxes if not any(tag.start <= box.start < tag.end for tag in tags)]
    return sorted([*tags, *(box for box in outside if not _BLANK.fullmatch(box.text))])


def _in_tag(content: str) -> str:
    frames = _boxes(content)
    if frames:
        return _joined(content, frames) or ""
    return core(_joined(content, list(_markers(content))) or content.strip())


def _boxes(text: str) -> list[Statement] | None:
    """Outermost boxes; None where one is open at the end of the text. Escaped braces are text.

    A box around all of a response is none, but those in it are.
    """
    opened: list[tuple[int, int] | None] = []  # where each open brace's box and its contents begin, if it is a box's
    found: list[Statement] = []
    for match in _BOXES_AND_BRACES.finditer(text):
        if match["box"]:
            opened.append((match.start(), match.end()))
        elif match["bare"]:
            found.append(Statement(*match.span(), match["bare"]))
        elif match[0] == "{":
            opened.append(None)
        elif match[0] == "}" and opened and (begin := opened.pop()) is not None:
            inner = len(found)
            while inner and found[inner - 1].start > begin[0]:
                inner -= 1
            if inner < len(found) and _is_response(text[begin[1] : match.start()], found[-1].end - begin[1]):
                continue
            found[inner:] = [Statement(begin[0], match.end(), text[begin[1] : match.start()].strip())]
    return found if all(begin is None for begin in opened) else None


def _is_response(content: str, end: int) -> bool:
    """Whether the contents of a box are lines of text that end with a box, which ends at ``end``."""
    return "\n" in content.strip() and not _FRAMES.sub("", content[end:])


#: "answer" and what may stand before the verb: "the answer (in cm) to the problem is".
_MARKER = re.compile(
    r"""(?:\b(?:the|my|our|a)\ )?(?:\b(?:final|correct)\ )?
        answers?[*_`"')\]]*\s*
        (?:\([^()\n]{1,40}\)\s*|,[^.,\n]{1,30},\s*)?
        (?:(?:to|for|of|in|that|which|we)\b[^.:\n=$]{1,80}?\s)?
        (?:is|are|was|will\ be|would\ be|should\ be|must\ be|becomes|equals|=|[:：])(?!\w)[*_`]*:?
      | \#\#\#\#(?!\#)
      | ^[ \t]*(?:\#{1,6}[ \t]*|\*\*[ \t]*|\\(?:text)?bf\{)?(?:(?:the|my)\ )?(?:final\ |correct\ )?
        (?:answers?|result|conclusion)[*_}]*[ \t]*(?=\n)
      | ^[ \t]*(?:Ans[.:]|A:(?=[^\n]*(?:\nA:[^\n]*)*\s*\Z))
      | 答案(?:是|为)?[:：]?
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
_SENTENCE_END = re.compile(r"\.(?=\s|\*|$)")
#: Of Markdown, around markers and answers.
_DECORATION = " \t\r\n*`"
_DISPLAY = re.compile(r"\s*(\$\$.+?\$\$|\\\[.+?\\\])", re.DOTALL)
#: What is said of an answer, and is none.
_REMARK = re.compile(
    r"(?:indeed |also |thus |therefore )?(?:correct|reasonable|consistent|valid|unique|right|confirmed|verified"
    r"|plausible|wrong|incorrect|needed|required|expected|known)\b",
    re.IGNORECASE,
)


def _markers(text: str) -> Iterator[Statement]:
    """What follows each marker, up to the end of its sentence or line; the paragraph where the marker is a heading."""
    for marker in list(_MARKER.finditer(text))[-_MARKERS:]:
        rest = text[marker.end() : marker.end() + _LONGEST]
        if len(rest) == _LONGEST and "\n" not in rest.strip():
            yield Statement(marker.start(), len(text), "…")  # no answer is as long
            continue
        lead = len(rest) - len(rest.lstrip(_DECORATION))
        if "\n" in rest[:lead].strip(" \t") and (answer := concluded(rest[lead:], heading=True)):
            yield Statement(marker.start(), marker.end() + lead, answer)
            continue
        if display := _DISPLAY.match(rest):  # in one line, as far as it goes on behind
            rest = " ".join(display[1].split()) + rest[display.end() :]
        line = rest.lstrip(_DECORATION + ("}" if "{" in text[: marker.start()][-9:] else "")).partition("\n")[0]
        sentence = _SENTENCE_END.split(line, maxsplit=1)[0]
        answer = _of_sentence(sentence, line[len(sentence) :])
        if answer and not _REMARK.match(answer):
            place = text.find(sentence, marker.end())
            end = place + len(sentence) + 1 if place >= 0 else marker.end() + len(sentence)
            yield Statement(marker.start(), end, answer)


def _of_sentence(sentence: str, after: str) -> str:
    """The answer in the rest of a marker's sentence, and what the next one takes back of it."""
    answer = core(sentence)
    if not _plain(answer):
        answer = predicate(sentence) or answer
    other = said_after(after)
    if other is not None and _plain(other := core(other)) and _spelled(other) != _spelled(answer):
        answer = f"{answer} or {other}"
    if any(answer.count(f"\\{opening}") != answer.count(f"\\{closing}") for opening, closing in ("[]", "()")):
        return "…"  # the sentence goes on in another line
    return answer.strip(_DECORATION)


def _joined(text: str, found: list[Statement]) -> str | None:
    """The last one, and those that it stands side by side with; what is the same is said once."""
    if not found:
        return None
    said, listed = [found[-1].text], False
    for one, after in zip(found[-2::-1], found[:0:-1], strict=True):
        gap = text[one.end : after.start]
        if not _side_by_side(gap) or not (_LIST.search(gap) or _brief(one.text)):
            break
        said.insert(0, one.text)
        listed = listed or _LIST.search(gap) is not None
    return _together(said, " , " if listed else " = ")


def _side_by_side(gap: str) -> bool:
    if len(gap) > _NEAR:
        return False
    words = re.findall(r"\w+|[^\w\s]", _FRAMES.sub(" ", gap).lower())
    return all(word in _BETWEEN for word in words) or (
        _DOUBT.search(gap) is not None and _SECOND_THOUGHT.search(gap) is None
    )


def _together(said: list[str], mark: str) -> str:
    """One answer where all are spelled the same; else a list, or the claim that they are equal."""
    said = [last_step(one) for one in said]
    different = [one.rstrip(". ") for one in {_spelled(one): one for one in said}.values()]
    if len(different) == 1:
        return said[-1]
    if mark != " = " or not all(re.search(r"\d", one) for one in different) or any(map(_symbolic, different)):
        return ", ".join(different)  # in a chain an expression with letters would be a name of the other
    return mark.join(
        one.rpartition("=")[2].strip() or one for one in different
    )  # whose values they are is not compared


def _symbolic(answer: str) -> bool:
    """Whether it has letters that are neither text nor commands."""
    return re.search(r"[A-Za-z]", re.sub(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+", "", answer)) is not None


def _spelled(answer: str) -> str:
    """The same for what is spelled the same, but for dress; of a number and words, the number."""
    if number := re.fullmatch(r"[$€£]?(-?\d[\d,]*(?:\.\d+)?)(?:\s*\\?%|\s+[A-Za-z ]+)?\.?", answer):
        return number[1].replace(",", "")
    answer = re.sub(r"\\[dt]frac", r"\\frac", answer)
    return re.sub(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:! ()\[\]]|[\s$*]|\.$", "", answer)


def _plain(answer: str) -> bool:
    """Whether it is a number or a formula, perhaps named or with a unit, and no step of a derivation."""
    plain = re.match(r"(?:[A-Za-z]\s*=\s*)?[-+$€£\\({]*\s*(?:\d|\\\(|\\[dt]?frac|\\sqrt|[a-z]\b)", answer) is not None
    return plain and len(answer.split()) <= 6 and _STEP.search(answer) is None


def _brief(answer: str) -> bool:
    return _plain(answer) or (len(answer.split()) <= 3 and _STEP.search(answer) is None)
