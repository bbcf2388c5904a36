"""What is too large for a page, in files beside it that the page loads as it needs them.

A page that was opened from a disk may load scripts and nothing else. So a piece is a script with one call, whose
argument is a string of JSON: nothing in it is executed.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from oblr.run.disk import write_whole

#: The folder beside the page.
FILES = "report_files"
#: About how many bytes a piece has.
SIZE = 2**20
#: Steps of a piece, at most; a power of two.
STEPS = 64
NAMED = re.compile(r"(?:steps|curve)-\d+-\d+-[0-9a-f]{24}\.js")


@dataclass(frozen=True)
class Piece:
    """Something that can be kept beside a page.

    Attributes:
        stem: how its name begins.
        of: what it is of: an address of a served page leads to this, whatever it has become.
        version: told from others by this, it need not be made again.
    """

    stem: str
    of: Hashable
    version: Callable[[], Hashable]
    content: Callable[[], Any]


class Shelf(Protocol):
    """Where pieces are put."""

    def put(self, one: Piece, others: Sequence[Path] = ()) -> str:
        """Its address from the page; ``others`` are folders of other reports, which may have it."""

    def has(self, one: Piece, others: Sequence[Path] = ()) -> bool:
        """Whether it would take no more room."""

    @property
    def used(self) -> bool:
        """Whether the page needs it."""


class Beside:
    """The folder beside a page: what is there already is not written again."""

    def __init__(self, folder: Path):
        self.folder, self.names = folder / FILES, set[str]()

    @property
    def used(self) -> bool:
        return bool(self.names)

    def name(self, one: Piece) -> str:
        return f"{one.stem}-{digest(one.version())}.js"

    def has(self, one: Piece, others: Sequence[Path] = ()) -> bool:
        name = self.name(one)
        return any(path.exists() for path in (self.folder / name, *(other / FILES / name for other in others)))

    def put(self, one: Piece, others: Sequence[Path] = ()) -> str:
        name = self.name(one)
        path = self.folder / name
        self.names.add(name)
        if not path.exists():
            self.folder.mkdir(exist_ok=True)
            if not any(linked(other / FILES / name, path) for other in others):
                write_whole(path, script(one.content()))
        return f"{FILES}/{name}"

    def tidy(self) -> None:
        """Delete the pieces that the page does not name any more, and the folder where it is empty."""
        if self.folder.is_dir():
            there = list(self.folder.iterdir())
            gone = [path for path in there if NAMED.fullmatch(path.name) and path.name not in self.names]
            for path in gone:
                path.unlink()
            if len(gone) == len(there):
                self.folder.rmdir()


class Served:
    """The pieces of a page that is served: each is made when it is asked for, of what is there then."""

    def __init__(self) -> None:
        self.contents = dict[str, Callable[[], Any]]()

    @property
    def used(self) -> bool:
        return bool(self.contents)

    def has(self, one: Piece, others: Sequence[Path] = ()) -> bool:
        return True

    def put(self, one: Piece, others: Sequence[Path] = ()) -> str:
        address = f"{FILES}/{one.stem}-{digest(one.of)}.js"
        self.contents[address] = one.content
        return address


def digest(of: Hashable) -> str:
    return blake2b(repr(of).encode(), digest_size=12).hexdigest()


def script(content: Any) -> bytes:
    """A piece, as its page loads it. JSON in ASCII is a string of JavaScript as well."""
    text = json.dumps(json.dumps(content, separators=(",", ":"))).replace("<", "\\u003c")
    return f"piece({text});\n".encode()


def linked(there: Path, here: Path) -> bool:
    """Whether one file could be made to stand at both places, and so takes no room twice."""
    try:
        os.link(there, here)
    except OSError:
        return False
    return True


def parts(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Steps that a piece has together, by their bytes.

    Where a piece begins and ends depends on its own steps alone: those that come later leave it as it is.
    """
    aligned: dict[int, list[int]] = {}
    for step in sizes:
        aligned.setdefault(step // STEPS * STEPS, []).append(step)
    for low, steps in aligned.items():
        yield from halves(steps, low, STEPS, sizes)


def halves(steps: list[int], low: int, wide: int, sizes: Mapping[int, int]) -> Iterator[list[int]]:
    if len(steps) <= 1 or sum(sizes[step] for step in steps) <= SIZE:
        if steps:
            yield steps
        return
    middle = low + wide // 2
    yield from halves([step for step in steps if step < middle], low, wide // 2, sizes)
    yield from halves([step for step in steps if step >= middle], middle, wide // 2, sizes)


def base64_size(files: Iterable[Path]) -> int:
    return sum(-(-path.stat().st_size // 3) * 4 for path in files)


def in_base64(files: Iterable[Path]) -> list[str]:
    return [base64.b64encode(path.read_bytes()).decode() for path in files]


def identity_of(files: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """By which files are told from others."""
    return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
