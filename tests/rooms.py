"""The rooms of a checkout and what they import of each other: ``python tests/rooms.py [FOLDER]``.

A room is a folder of ``src/oblr``, a file that lies beside the folders, ``callbacks``, or a script. Lower rooms come
first: each imports only from lines above its own. An arrow that runs upwards is one of a circle.
"""

import argparse
import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
    """That a file belongs to; a script is one of its own."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "callbacks":
        return "callbacks"
    return parts[2] if parts[1] == "oblr" and len(parts) > 2 else f"src/{parts[1]}"


def arrows(root: Path) -> dict[str, set[str]]:
    """Room → rooms that it imports from."""
    files = [path for path in sources(root) if path.name != "__init__.py"]
    rooms = {room(path, root) for path in files}
    graph: dict[str, set[str]] = {name: set() for name in rooms}
    for path in files:
        here = room(path, root)
        for name in imported(path):
            first, *rest = name.split(".")
            there = rest[0] if first == "oblr" and rest else first if first == "callbacks" else f"src/{first}"
            if there in rooms and there != here:
                graph[here].add(there)
    return graph


def table(root: Path) -> str:
    """Rooms in the order in which they build on each other, with what each imports."""
    graph = arrows(root)
    try:
        order, circle = list(TopologicalSorter(graph).static_order()), "none runs upwards"
    except CycleError as error:
        order, circle = sorted(graph), "these run in a circle: " + " → ".join(reversed(error.args[1]))
    width = max(map(len, graph))
    lines = [f"{name:{width}}  {' '.join(sorted(graph[name], key=order.index))}".rstrip() for name in order]
    return "\n".join([*lines, "", f"{len(graph)} rooms, {sum(map(len, graph.values()))} arrows; {circle}"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT, help="another checkout")
    print(table(parser.parse_args().folder))
