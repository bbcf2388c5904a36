"""Files that grow by lines while others read them."""

import os
from pathlib import Path


class Appended:
    """A file that another process appends lines to, or replaces: each time, only what is new is read.

    Args:
        path: it may not be there yet.
    """

    def __init__(self, path: Path):
        self.path = path
        self.again()

    def again(self) -> None:
        """From its beginning."""
        self.inode, self.done, self.last = -1, 0, b""

    def lines(self) -> tuple[list[bytes], bool]:
        """Whole lines that have come, without their ends, and whether they replace all that were read before.

        A last line that is not whole yet comes later. A file is another one where it has another inode, is shorter, or
        has not what was read last where that was.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            replaced = self.done > 0
            self.again()
            return [], replaced
        with file:
            about = os.fstat(file.fileno())
            file.seek(self.done - len(self.last))
            replaced = about.st_ino != self.inode or about.st_size < self.done or file.read(len(self.last)) != self.last
            if replaced:
                self.again()
                file.seek(0)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        self.inode, self.done = about.st_ino, self.done + len(whole)
        self.last = lines[-1] + b"\n" if lines else self.last
        return lines, replaced
