"""The answer in a sentence: the one value that it gives, with its unit; none where it gives several or doubts."""

import re
from collections.abc import Sequence

_QUOTES = ' \t\r\n`"“”✓✔✅☑■□∎'
_HEDGES = re.compile(
    r"\b(?:or|either|maybe|perhaps|possibly|probably|alternatively|otherwise|unless|might|could|wrong|incorrect|invalid"
    r"|instead|unsure|guess\w*|skip\w*|cannot|can't|wait|depends|depending)\b|\bbetween\s+\W*\d"
    r"|(?:\bnot|n't)\s+(?:the |an? |quite |really )?(?:answer|correct|right|valid|true|possible|sure|certain)\b",
    re.IGNORECASE,
)
#: What begins the reason for an answer, and ends the answer.
_REASON = re.compile(
    r"""(?:[,;(]\s*|\s+[–—-]+\s+|\s+)(?:since|because|as|which|where|given|when|so|due\ to|i\.e\.|that\ is|namely
        |obtained|achieved|attained|according|by|from|for|after|because\ of|with\ equality)\b(?!\s*[\d\\$=]+\s*$)
      | ,\s*(?=(?:the|this|it|we|and\ (?:this|the|it|we)|there)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_LEAD = re.compile(
    r"(?:(?:therefore|thus|then|hence|so|simply|just|exactly|precisely|clearly|indeed|equal to|given by|approximately"
    r"|about|roughly|indeed|now|also)\b[,:]?\s*|[:=]\s*)+",
    re.IGNORECASE,
)
_OR_ELSE = re.compile(
    r"[\s$.,;!)*\\\]]*(?:or|maybe|perhaps|alternatively|otherwise|no|wait|actually"
    r"|sorry|correction|hmm|it (?:is|could|can|may|might))\b[,:.!]?\s+"
    r"(?:(?:or|no|wait|actually|maybe|perhaps|even|possibly|else|it|it's|the answer|this|is|be|can|could|may|might"
    r"|also)\b[,:.!]?\s+)*([^\n]*)",
    re.IGNORECASE,
)
_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BOLD = re.compile(r"\*\*(.+?)\*\*|__(.+?)__|\\textbf\{([^{}]*)\}", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.,/^])(?:[-−]?[$€£]?|[$€£]-)\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?(?:\s?%|°)?(?![\w/^])(?!\.\d)", re.ASCII
)
_NEGATED = re.compile(
    r"(?:\b(?:not|never|no|nor|neither|except|excluding|than|under|over|above|below|exceeds?|modulo|mod)|n't)\b[^.,;=\d]{0,20}$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?:(?<=[.?])|(?<=[a-z]!))[\"')\]*]*\s+(?=\S)")
_GATE = re.compile(
    r"(?:and |but |then )?(?:so|thus|therefore|hence|consequently|accordingly|finally|overall|altogether"
    r"|in total|in all|in conclusion|in summary|to summarize|to sum up"
    r"|as a result|we conclude|it follows|this (?:means|gives))\b",
    re.IGNORECASE,
)
_CLOSER = re.compile(
    r"\b(?:hope (?:this|that|it)|let me know|feel free|happy to|good luck|anything else)\b|\?[\s*]*$|^[\s✓■∎□.*]*$"
    r"|^\W*\\(?:blacksquare|square|qed)\W*$",
    re.IGNORECASE,
)
#: After a number and its unit, what the sentence goes on with.
_GOES_ON = re.compile(
    r"left|remaining|each|every|per|a|an|the|in|on|at|for|from|after|before|when|while|during|of|by|with"
    r"|within|if|who|that|which|this|these|to|total|altogether|overall|together|is|are|was|were|will|would"
    r"|can|must|have|has|had|now|today|tomorrow|yesterday|long|tall|wide|high|deep|old|away|because|since"
    r"|so|as|all|than|ways|respectively|they|he|she|it|we|you",
    re.IGNORECASE,
)
_CONTINUES = frozenset(["and", "or", "plus", "minus", "times", "over", "divided"])
_COPULA = re.compile(
    r"(?:\b(?:is|are|was|were|be|equals|becomes|total(?:s|ed)?|of)|[=:])\s*(?:exactly |just |only |about )?$"
)
_TEXT = re.compile(r"\\text(?:bf|it|rm)?\s*\{([^{}]*)\}")
_ARROW = re.compile(r"\\(?:Right|Longright)arrow(?![A-Za-z])|\\(?:implies|therefore|iff)(?![A-Za-z])|⇒|⟹|∴")
_LAYOUT = re.compile(r"\\(?:begin|end)\s*\{(?:aligned|align\*?|gathered|split|array)\}|\\(?:q?quad|[,;:! ])|&")
_PREDICATE = re.compile(r"(?:\b(?:is|are|was|were|be|equals|becomes|has|have|had|needs?|costs?|gets?|makes?)|[=:])$")
#: Characters of a response's end that a conclusion may take.
_LONGEST = 2000


def core(sentence: str) -> str:
    """The answer that a sentence begins with, without the reason for it; the sentence where it has none."""
    sentence = _LEAD.sub("", sentence.strip(_QUOTES), count=1) if _LEAD.match(sentence) else sentence.strip(_QUOTES)
    for span in (_BOLD, _MATH):
        if (found := span.match(sentence)) and _is_span(found):
            inside, tail = _inside(found), sentence[found.end() :].strip(" *`.")
            if span is _BOLD and not tail:
                return core(inside) if inside != sentence else inside
            if not tail or (_REASON.match(f" {tail}") and not hedged(tail)):
                return inside.strip()
    reason = _REASON.search(sentence)
    if reason and sentence[: reason.start()].strip() and not hedged(sentence[reason.start() :]):
        sentence = sentence[: reason.start()]
    return _without_predicate(sentence.strip(" *`"))


def _without_predicate(sentence: str) -> str:
    """Of ``7 apples are left``: 7 apples; of ``that there are 7 apples``, too."""
    number = _NUMBER.match(sentence)
    if number is None and re.match(r"(?:that|there)\b", sentence):
        return _value([sentence]) or sentence
    if number is None or re.search(r"[\d=\\]", tail := sentence[number.end() :]) or hedged(tail):
        return sentence
    words = _unit_words(tail)
    following = tail.split()[len(words) :]
    if following and tail[:1] == " " and _GOES_ON.fullmatch(following[0]) and words[-1:] != following[:1]:
        return " ".join([number[0].strip(), *words])
    return sentence


def predicate(sentence: str) -> str | None:
    """The value that a whole sentence is about, as ``the number of apples is 7`` and ``there are 7 apples``."""
    value = _value([sentence])
    if value is None or not re.match(r"[A-Za-z]{2,}", sentence):
        return None
    before = sentence[: sentence.rfind(value.split()[0])].rstrip(" *$\\(")
    return value if _PREDICATE.search(before) else None


def hedged(text: str) -> bool:
    return _HEDGES.search(text) is not None


def said_after(rest: str) -> str | None:
    """What "or" says behind an answer, up to the end of its sentence."""
    doubt = _OR_ELSE.match(rest)
    return re.split(r"\.(?=\s|$)", doubt[1], maxsplit=1)[0].strip(" $*") if doubt else None


def concluded(text: str, heading: bool = False) -> str | None:
    """The answer in the last sentence, where it says that it concludes or has it in bold.

    Args:
        heading: ``text`` follows the heading of the answer: its first paragraph is the conclusion.
    """
    if heading:
        paragraphs = re.split(r"\n\s*\n", text[:_LONGEST].strip())
        first = paragraphs[0]
        if first.rstrip(" *").endswith(":") and len(paragraphs) > 1:
            first += "\n" + paragraphs[1]
        lines = [line for line in first.splitlines() if line.strip()]
        if len(lines) > 1 and all(re.match(r"\s*(?:[-*•]|\d+[.)])\s", line) for line in lines):
            return ", ".join(re.sub(r"^\s*(?:[-*•]|\d+[.)])\s+", "", line) for line in lines)
        if len(lines) > 1 and not any(re.search(r"[A-Za-z]{3,}", line) for line in lines):
            return ", ".join(lines)
        return _value(_sentences(first) if len(_bolds(first)) != 1 else [first])
    sentences = _sentences(text[-_LONGEST:].strip())
    while sentences and _CLOSER.search(sentences[-1]):
        sentences.pop()
    if not sentences:
        return None
    last = sentences[-1]
    if not (_GATE.match(last.lstrip(" *#>")) or _bolds(last) or _is_equation(last)):
        return None
    if len(sentences) > 1 and _shape(sentences[-2]) == _shape(last) and sentences[-2] != last:
        return None
    return _value(sentences)


def _sentences(text: str) -> list[str]:
    """Paragraphs and their sentences; a display belongs to what it ends."""
    text = re.sub(r"\s*(\$\$.+?\$\$|\\\[.+?\\\])", lambda d: " " + " ".join(d[1].split()), text, flags=re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [sentence for line in lines for sentence in _SENTENCE_END.split(line) if sentence.strip()]


def _is_equation(sentence: str) -> bool:
    """Whether a sentence is one formula, which ends with the value of something."""
    formula = _MATH.fullmatch(sentence.strip(" ."))
    return formula is not None and _is_span(formula) and "=" in formula[0]


def last_step(content: str) -> str:
    r"""Of a box that holds a derivation, where its last step leads to; else ``content``.

    A derivation has arrows, as ``2x = 6 \\Rightarrow x = 3``, or prose in ``\\text``.
    """
    words = re.findall(r"[A-Za-z]{2,}", " ".join(_TEXT.findall(content)).lower())
    if not _ARROW.search(content) and len(words) < 3 and not {"so", "then", "thus", "is"}.intersection(words):
        return content
    plain = _ARROW.sub(" . ", _LAYOUT.sub(" ", _TEXT.sub(r" \1 ", content)))
    steps = [
        step for step in re.split(r"\\\\(?:\[[^\]]*\])?|\.(?=\s|$)|\bso\b|\bthen\b", plain) if step.strip(" \n,.&\\")
    ]
    if not steps or hedged(steps[-1]) or (len(steps) > 1 and _shape(steps[-2]) == _shape(steps[-1])):
        return content
    step = steps[-1].strip(" \n,.&")
    value = step.rpartition("=")[2].strip() if "=" in step else _one(step)
    return (
        value
        if value and not re.search(r"[A-Za-z]{3,}.*\d|[<>]|\\(?:le|ge|ne|mid|in|neq|leq|geq)\b", value)
        else content
    )


def _shape(sentence: str) -> str:
    """The sentence without its values."""
    return " ".join(re.sub(r"\W*\d[\d.,/]*\W*", " # ", _MATH.sub(" # ", sentence)).split())


def _value(sentences: Sequence[str]) -> str | None:
    if not sentences or hedged(_MATH.sub("", sentence := sentences[-1].strip())):
        return None
    bolds = _bolds(sentence)
    if len(bolds) == 1 and sentence.strip(" .:*_") == bolds[0].strip(" .:*_"):
        sentence, bolds = bolds[0], []
    if len(bolds) > 1:
        return ", ".join(bolds)
    if not bolds:
        return _one(sentence)
    place = sentence.rindex(bolds[0])
    if _NEGATED.search(sentence[:place].rstrip(" *_")) or (inner := _one(bolds[0])) is None:
        return None
    return _with_unit(inner, sentence[place + len(bolds[0]) :].lstrip("*_}"))


def _one(sentence: str) -> str | None:
    """Its only formula or number, or the one that it ends with after a verb."""
    spans = [span for span in _MATH.finditer(sentence) if _is_span(span)]
    if spans and _NUMBER.search(_MATH.sub(" ", sentence)):
        return None
    found = spans or list(_NUMBER.finditer(sentence))
    if not found or (not spans and len(re.findall(r"(?<!\w)\d[\d,.]*", sentence)) > len(found)):
        return None
    last = found[-1]
    before, after = sentence[: last.start()], sentence[last.end() :]
    if _NEGATED.search(before) or (len(found) > 1 and (not _COPULA.search(before) or re.search(r"\w", _rest(after)))):
        return None
    return _with_unit(_inside(last).strip() if spans else last[0].strip(), after)


def _unit_words(tail: str) -> list[str]:
    """The words that may be a unit, which stand directly after a value."""
    words: list[str] = []
    for word in tail[:80].split():
        bare = word.strip(".,;:!)*_")
        if not bare or _GOES_ON.fullmatch(bare) or word[0] in ",;:(–—":
            break
        if bare.lower() in _CONTINUES:  # "7 and a half" is no 7
            return tail[:80].split()
        words.append(bare)
        if word != bare:
            break
    return words


def _with_unit(value: str, tail: str) -> str:
    if re.match(r"\s*[,.;:!)]|\s*$", tail):
        return value
    return " ".join([value, *_unit_words(tail)])


def _rest(tail: str) -> str:
    for word in _unit_words(tail):
        tail = tail.partition(word)[2]
    return tail


def _bolds(sentence: str) -> list[str]:
    """What is in bold and has a digit or a formula, each once."""
    spans = (_inside(bold).strip() for bold in _BOLD.finditer(sentence))
    return list(dict.fromkeys(span for span in spans if re.search(r"[\d\\]", span)))


def _inside(span: re.Match[str]) -> str:
    return next(group for group in span.groups() if group is not None)


def _is_span(span: re.Match[str]) -> bool:
    """Whether what stands between dollars is a formula, and not words between two prices."""
    plain = re.sub(r"\\(?:text|mathrm|mbox|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+", "", span[0])
    return span[0][0] != "$" or not re.search(r"[A-Za-z]{4,}|\b(?:and|per|for|the|at|to|of)\b", plain)
