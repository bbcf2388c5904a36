"""A terminal for tests: what a program writes to one, and what then stands on it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable

#: What this screen understands besides text: colours, an erased line, the line above, and a hidden cursor.
CONTROLS = re.compile(r"(\x1b\[[0-9;?]*[a-zA-Z]|\r|\n)")


def shown(written: str) -> list[str]:
    """The lines that stand there in the end, of a program that writes to one line at a time."""
    lines, row, column = [""], 0, 0
    for piece in filter(None, CONTROLS.split(written)):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", piece):
            row = max(row - int(piece[2:-1] or 1), 0)
        elif piece.startswith("\x1b"):
            assert re.fullmatch(r"\x1b\[([\d;]*m|\?25[lh])", piece), piece
        else:
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
            column += len(piece)
    return [line.rstrip() for line in lines if line.strip()]


class Screen:
    """A pseudo-terminal of 120 columns.

    Attributes:
        theirs: the descriptor that a program gets.
        written: all that it has written.
    """

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.written = ""

    def read(self, seconds: float) -> None:
        """What comes within this time, if anything does."""
        if select.select([self.ours], [], [], seconds)[0]:
            self.written += os.read(self.ours, 65536).decode(errors="replace")

    def until(self, found: Callable[[str], bool], seconds: float = 120) -> float:
        """Read until something is found in what is written; how many seconds that took."""
        start = time.monotonic()
        while not found(self.written):
            assert time.monotonic() - start < seconds, self.written
            self.read(0.05)
        return time.monotonic() - start

    def end(self, process: subprocess.Popen[bytes], seconds: float = 120) -> int:
        """Read until the process ends; its status."""
        deadline = time.monotonic() + seconds
        while process.poll() is None:
            assert time.monotonic() < deadline, self.written
            self.read(0.05)
        self.read(0.0)
        return process.returncode
