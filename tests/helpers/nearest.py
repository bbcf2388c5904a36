"""Which test files could notice a change of a source file: those that import it, nearest first."""

import ast
import re
from functools import cache
from itertools import count
from pathlib import Path

from rooms import imported


@cache
def _imports(root: Path) -> dict[str, set[str]]:
    """File → files that it imports or names, of sources, tests, and what tests use; scripts that a test runs, too."""
    files = [path for folder in ("src", "callbacks", "tests", "benchmarks") for path in (root / folder).rglob("*.py")]
    names: dict[str, Path] = {}
    for path in files:
        first, *rest = path.relative_to(root).with_suffix("").parts
        inside = rest[-1:] if first in ("tests", "benchmarks") else rest if first == "src" else [first, *rest]
        names[".".join(part for part in inside if part != "__init__")] = path
    runners = _runners(root)
    graph = {}
    for path in files:
        text, found = path.read_text(), set()
        for name in [*imported(path), *re.findall(r"\b(?:oblr|callbacks)\.[\w.]*\w", text)]:
            while name and name not in names:
                name = name.rpartition(".")[0]
            found.add(names.get(name))
        if path.is_relative_to(root / "tests"):
            found |= {script for script, pattern in runners.items() if re.search(pattern, text)}
        there = {str(other.relative_to(root)) for other in found if other and other.name != "conftest.py"}
        graph[str(path.relative_to(root))] = there
    return graph


def _runners(root: Path) -> dict[Path, str]:
    """Script → a pattern of what runs it: its name, and the fixtures of conftest.py that have its name."""
    conftest, found = root / "tests" / "conftest.py", {}
    text = conftest.read_text() if conftest.exists() else ""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    for script in (root / "src").glob("*.py"):
        fixtures = [node.name for node in functions if script.name in str(ast.get_source_segment(text, node))]
        found[script] = "|".join([rf"\b{script.stem}\.py\b", *(rf"\b{name}\(" for name in fixtures)])
    return found


def nearest_tests(root: Path, file: str, scope: tuple[str, ...], most: int) -> list[str]:
    """At most so many: with the fewest imports between, and of these first what names the function, and imports little.

    What is named after the file comes before all others. The room's own folder is as near as if it imported something
    that imports the file: what only configuration names nothing imports. Where there is neither, whole programs are
    tried.
    """
    graph, distance, edge = _imports(root), {file: 0}, {file}
    for steps in count(1):
        edge = {name for name, there in graph.items() if there & edge and name not in distance}
        if not edge:
            break
        distance |= dict.fromkeys(edge, steps)
    *room, stem = (part for part in Path(file).with_suffix("").parts if part not in ("src", "oblr"))

    def key(name: str) -> tuple[int, bool, int, int, str]:
        path, text = Path(name), (root / name).read_text()
        named, own = path.stem == f"test_{stem}", path.parent.name in room
        runs = any(there.startswith("src/") and there.count("/") == 1 for there in graph[name])
        steps = 0 if named else min(distance.get(name, 1000 - runs), 2 if own else 1000)
        return steps, not own, -sum(text.count(part) for part in scope), len(graph[name]), name

    return sorted((name for name in graph if Path(name).name.startswith("test_")), key=key)[:most]
