"""Mistakes that can be planted: the operators of mutmut, and two for what it leaves alone."""

import ast
import difflib
import random
import subprocess
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import PragmaVisitor
from rooms import room


@dataclass(frozen=True, eq=False)
class Mutant:
    """In ``module``, the tree of ``file``, ``old`` becomes ``new``; ``scope`` names what is around it."""

    file: str
    line: int
    scope: tuple[str, ...]
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode

    def code(self) -> str:
        """The whole file with the mistake."""
        changed = self.module.deep_replace(self.old, self.new)
        assert isinstance(changed, cst.Module)
        return changed.code

    def change(self) -> list[str]:
        """The lines that differ, each after its sign."""
        lines = difflib.unified_diff(self.module.code.splitlines(), self.code().splitlines(), lineterm="", n=0)
        return [line for line in list(lines)[2:] if not line.startswith("@@")]

    def is_another_program(self) -> bool:
        try:
            return ast.dump(ast.parse(self.code())) != ast.dump(ast.parse(self.module.code))
        except SyntaxError:
            return False


def _call_left_out(node: cst.Expr) -> Iterator[cst.Pass]:
    if isinstance(node.value, cst.Call):
        yield cst.Pass(semicolon=node.semicolon)


def _condition_turned(node: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    negated = cst.UnaryOperation(cst.Not(), node.test, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=negated.with_changes(expression=inner))


OPERATORS = [
    *mutation_operators,
    (cst.Expr, _call_left_out),
    (cst.If, _condition_turned),
    (cst.While, _condition_turned),
]


class _Places(cst.CSTVisitor):
    """Line → what around it has a name, and nodes that begin there; none of annotations, decorators and prose."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.scope: list[str] = []
        self.found: dict[int, list[tuple[tuple[str, ...], cst.CSTNode]]] = defaultdict(list)

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator):
            return False
        if isinstance(node, cst.ClassDef | cst.FunctionDef):
            self.scope.append(node.name.value)
        if isinstance(node, cst.SimpleString) and " " in node.value:  # wording, which no test freezes
            return False
        if place := self.get_metadata(PositionProvider, node, None):
            self.found[place.start.line].append((tuple(self.scope), node))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.ClassDef | cst.FunctionDef):
            self.scope.pop()


class Source:
    """A file whose mutants are looked for by line: none where it says ``pragma: no mutate``, as mutmut reads it."""

    def __init__(self, root: Path, file: str) -> None:
        wrapper = MetadataWrapper(cst.parse_module((root / file).read_text()))
        self.file, self.module = file, wrapper.module
        places, pragmas = _Places(), PragmaVisitor(file)
        wrapper.visit(places)
        wrapper.visit(pragmas)
        left_out = pragmas.no_mutate_lines | pragmas.ignore_node_lines
        self.places = {line: nodes for line, nodes in places.found.items() if line not in left_out}

    def mutants(self, line: int) -> Iterator[Mutant]:
        for scope, node in self.places.get(line, ()):
            for kind, operator in OPERATORS:
                if isinstance(node, kind):
                    yield from (Mutant(self.file, line, scope, self.module, node, new) for new in operator(node))


def mutants(root: Path, file: str) -> list[Mutant]:
    """All of a file."""
    source = Source(root, file)
    return [mutant for line in source.places for mutant in source.mutants(line)]


def room_of(root: Path, file: str) -> str:
    """Scripts are one together."""
    name = room(root / file, root)
    return "scripts" if name.startswith("src/") else name


def drawn(root: Path, asked: Mapping[str, Collection[int] | None], rng: random.Random) -> Iterator[Mutant]:
    """Mutants of these files, or of lines of them, at random: from each room in turn, of another line each time."""
    rooms: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file, lines in sorted(asked.items()):
        every = range(1, len((root / file).read_text().splitlines()) + 1)
        rooms[room_of(root, file)] += [(file, line) for line in sorted(every if lines is None else lines)]
    queues = [deque(rng.sample(places, len(places))) for _, places in sorted(rooms.items())]
    rng.shuffle(queues)
    sources: dict[str, Source] = {}
    left: dict[tuple[str, int], list[Mutant]] = {}
    while queues:
        for queue in list(queues):
            while queue:
                file, line = place = queue.popleft()
                if place not in left:
                    sources[file] = sources.get(file) or Source(root, file)
                    found = list(sources[file].mutants(line))
                    left[place] = rng.sample(found, len(found))
                if left[place]:
                    queue.append(place)
                    if (mutant := left[place].pop()).is_another_program():
                        yield mutant
                        break
            else:
                queues.remove(queue)


def _units(body: list[ast.stmt]) -> Iterator[tuple[str, range]]:
    """What each function says, but for its docstring, and each statement outside of one; and its lines."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _units(node.body)
            continue
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        yield ast.dump(node), lines


def differing(root: Path, since: str) -> dict[str, set[int]]:
    """File → lines of its functions, and of its other statements, that were nowhere in these files at a revision.

    Raises:
        subprocess.CalledProcessError: there is no such revision.
    """

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, text=True).stdout

    names = git("diff", "--name-only", "--no-renames", since, "--", "src", "callbacks").splitlines()
    names += git("ls-files", "--others", "--exclude-standard", "--", "src", "callbacks").splitlines()
    files = [name for name in names if name.endswith(".py")]
    there = set(git("ls-tree", "-r", "--name-only", since, "--", "src", "callbacks").splitlines())
    old = {
        unit for name in files if name in there for unit, _ in _units(ast.parse(git("show", f"{since}:{name}")).body)
    }
    found = {}
    for name in files:
        if (root / name).is_file():
            units = _units(ast.parse((root / name).read_text()).body)
            if lines := {line for unit, its in units if unit not in old for line in its}:
                found[name] = lines
    return found
