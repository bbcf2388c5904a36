"""The rooms of a checkout, how large they are, and what they import of each other: ``python tests/rooms.py [FOLDER]``.

A room is a folder of ``src/oblr``, a file that lies beside the folders, ``callbacks``, or the scripts ``src/*.py``.
Lower rooms come first: each imports only from lines above its own. An arrow that runs upwards is one of a circle. Lines
are those of Python, empty ones included.
"""

import argparse
import ast
from collections.abc import Collection, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = "src/*.py"


def sources(root: Path) -> list[Path]:
    return sorted([*(root / "src").rglob("*.py"), *(root / "callbacks").glob("*.py")])


def imported(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path, root: Path) -> str:
    """That a file belongs to."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "callbacks":
        return "callbacks"
    return parts[2] if parts[1] == "oblr" else SCRIPTS


def arrows(root: Path) -> dict[str, set[str]]:
    """Room → rooms that it imports from."""
    files = [path for path in sources(root) if path.name != "__init__.py"]
    rooms = {room(path, root) for path in files}
    graph: dict[str, set[str]] = {name: set() for name in rooms}
    for path in files:
        here = room(path, root)
        for name in imported(path):
            first, *rest = name.split(".")
            there = rest[0] if first == "oblr" and rest else first if first == "callbacks" else here
            if there in rooms and there != here:
                graph[here].add(there)
    return graph


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def sized(paths: Collection[Path]) -> str:
    return f"{lines(paths):,} lines in {len(paths)} files"


def totals(root: Path) -> list[str]:
    """What the program, its tests and its measurements take, and what they have measured."""
    measuring = [path for folder in ("benchmarks", "studies") for path in (root / folder).rglob("*")]
    kept = [path for path in measuring if "results" in path.parts and path.is_file() and "-quick." not in path.name]
    return [
        f"src, callbacks       {sized(sources(root))}",
        f"tests                {sized([*(root / 'tests').rglob('*.py')])}",
        f"benchmarks, studies  {sized([path for path in measuring if path.suffix == '.py'])}",
        f"their results        {sum(path.stat().st_size for path in kept):,} bytes in {len(kept)} files",
    ]


def table(root: Path) -> str:
    """Rooms in the order in which they build on each other: lines, files, and what each imports."""
    graph = arrows(root)
    try:
        order, circle = list(TopologicalSorter(graph).static_order()), "none runs upwards"
    except CycleError as error:
        order, circle = sorted(graph), "these run in a circle: " + " → ".join(reversed(error.args[1]))
    width = max(map(len, graph))
    rows = [f"{'':{width}}  lines  files  imports"]
    for name in order:
        own = [path for path in sources(root) if room(path, root) == name]
        imports = " ".join(sorted(graph[name], key=order.index))
        rows.append(f"{name:{width}}  {lines(own):5}  {len(own):5}  {imports}".rstrip())
    said = f"{len(graph)} rooms, {sum(map(len, graph.values()))} arrows; {circle}"
    return "\n".join([*rows, "", *totals(root), said])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT, help="another checkout")
    print(table(parser.parse_args().folder))
