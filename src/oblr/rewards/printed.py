"""What rewards print: shown as text, and not more than a little of it."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Bytes of all rewards of a process that are shown.
SHOWN = 64 * 1024


class _Reader:
    """Reads what comes, for as long as anybody may write; shows the first of it, without control characters."""

    def __init__(self) -> None:
        self.left = SHOWN

    def read(self, source: int) -> None:
        while part := os.read(source, 65_536):
            if self.left > 0:
                text = part[: self.left].decode(errors="replace")
                sys.stderr.write(
                    "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
                )
                self.left -= len(part)
                if self.left <= 0:
                    sys.stderr.write("\nrewards print more than is shown\n")
                sys.stderr.flush()
        os.close(source)


_reader = _Reader()


@contextmanager
def printed() -> Iterator[int]:
    """A file descriptor that processes may get as their output."""
    source, out = os.pipe()
    threading.Thread(target=_reader.read, args=(source,), daemon=True).start()
    try:
        yield out
    finally:
        os.close(out)
