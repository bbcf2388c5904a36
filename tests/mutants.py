"""The mistakes of `mutants.yaml`, which `mutate.py` plants in the code."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import yaml

TABLE = Path("tests", "mutants.yaml")


class TableError(Exception):
    """The table does not fit the checkout, or a test that it names fails without any mistake."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: ``old``, which ``file`` has once, becomes ``new``; ``tests``, files or node ids, could notice it.

    ``why`` says what would go wrong for the user; ``equivalent`` why nothing would, after all: then it is not tried.
    """

    room: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str
    equivalent: str = ""

    @property
    def files(self) -> list[str]:
        return [self.file, *(test.partition("::")[0] for test in self.tests)]

    def key(self, root: Path) -> str:
        """Another one where it has to be tried again."""
        parts = [*((root / file).read_text() for file in self.files), self.old, self.new, *self.tests]
        return f"{self.file}:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def load(root: Path) -> list[Mutant]:
    """Raises TableError where an entry does not fit the checkout."""
    try:
        entries = yaml.safe_load((root / TABLE).read_text())
    except yaml.YAMLError as error:
        raise TableError(" ".join(str(error).split())) from error
    mutants = []
    for number, entry in enumerate(entries, 1):
        try:
            mutant = Mutant(**entry | {"tests": tuple(entry["tests"])})
        except (TypeError, KeyError) as error:
            raise TableError(f"entry {number}: {error}") from error
        if missing := [file for file in mutant.files if not (root / file).is_file()]:
            raise TableError(f"entry {number}: there is no {missing[0]}")
        if (count := (root / mutant.file).read_text().count(mutant.old)) != 1:
            raise TableError(f"entry {number}: {mutant.file} has {mutant.old!r} {count} times, not once")
        mutants.append(mutant)
    return mutants
