"""Text of models, data files, servers and other runs, as a line for people: it says what it says and does nothing.

Every line that a process shows or logs goes through :func:`plain`. What would steer a terminal, turn the direction of a
line, end it or hide in it is written out, and so is no secret that this process knows (:mod:`oblr.run.secrets`).
"""

import unicodedata

from oblr.run.secrets import hidden

#: Categories of characters that are no text: control, format (marks of direction among them), separators of lines and
#: of paragraphs, and halves of characters, which cannot even be encoded.
NO_TEXT = ("Cc", "Cf", "Zl", "Zp", "Cs")
#: Characters of a line that anybody reads.
LONGEST = 8000


def verbatim(text: str, keep: str = "\n\t") -> str:
    r"""``text`` with what is no text written out as ``\x1b`` or ``\u202e``, except for the characters of ``keep``."""
    if text.isprintable():
        return text
    return "".join(_written(c) if unicodedata.category(c) in NO_TEXT and c not in keep else c for c in text)


def plain(line: object) -> str:
    """One line of text, without secrets; what is longer than :data:`LONGEST` is cut."""
    text = hidden(str(line))
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text):,} characters)"
    return verbatim(text, keep="")


def paragraph(text: str) -> str:
    """The same of several lines, as a traceback has them; all but the first are indented: none looks like ours."""
    first, *others = text.rstrip("\n").split("\n")
    indented = [line if line[:1] in ("", " ") else f"    {line}" for line in others]
    return "".join(f"{verbatim(hidden(line), keep='')}\n" for line in (first, *indented))


def _written(c: str) -> str:
    if c in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[c]
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
