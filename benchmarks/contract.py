"""Does vLLM have what we rely on? Its CUDA wheels against ``contract.yaml``, by syntax trees, without a GPU.

    python benchmarks/contract.py [VERSION ...] [--quick]      # make contract

Versions are the pinned one and the oldest that ``rollout/vllm.py`` is written for. Their wheels are fetched by pip into
``.cache/wheels`` and not installed; nothing of them is run. ``--quick`` reads the vLLM that is installed here.
Ends with status 1 where something is missing.
"""

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import yaml
from figures import ROOT, Figure, at_most, parser, write

OLDEST = "0.24.0"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64", "manylinux1_x86_64")
Tree = zipfile.Path | Path


@dataclass(frozen=True)
class Row:
    """A declaration; ``contract.yaml`` says what its parts mean."""

    at: str
    why: str
    route: str = ""
    takes: tuple[str, ...] = ()
    has: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    since: str = "0"
    before: str = "99"

    def applies_to(self, version: str) -> bool:
        return _number(self.since) <= _number(version) < _number(self.before)

    def missing(self, root: Tree) -> Iterator[str]:
        """What this vLLM lacks of it."""
        path, _, name = self.at.partition("::")
        node = _find(root, path, name)
        if node is None:
            yield f"{self.at} is not there"
            return
        parameters = _parameters(node) if self.takes else []
        if absent := [name for name in self.takes if name not in parameters]:
            yield f"{self.at} does not take {', '.join(absent)}"
        elif [name for name in parameters if name in self.takes] != list(self.takes):
            yield f"{self.at} takes {', '.join(self.takes)} in another order"
        if absent := set(self.has) - _members(node):
            yield f"{self.at} has no {', '.join(sorted(absent))}"
        strings = _members(node) | {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        if absent := {word for word in self.words if word not in strings}:
            yield f"{self.at} does not know {', '.join(sorted(absent))}"
        options = strings | {f"--{member.replace('_', '-')}" for member in _members(node)}
        options |= {option.replace("--", "--no-", 1) for option in options if str(option).startswith("--")}
        if absent := set(self.flags) - options:
            yield f"{self.at} has no {', '.join(sorted(absent))}"
        if self.route and self.route not in _routes(node):
            yield f"{self.at} does not serve {self.route}"
        for text in self.says:
            if _plain(ast.parse(text).body[0]) not in map(_plain, ast.walk(node)):
                yield f"{self.at} does not say {text}"


def table() -> list[Row]:
    content = yaml.safe_load((ROOT / "benchmarks" / "contract.yaml").read_text())
    lists = {field.name for field in fields(Row) if field.type == tuple[str, ...]}
    return [
        Row(**{k: tuple([v] if isinstance(v, str) else v) if k in lists else v for k, v in entry.items()})
        for entry in content["vllm"]
    ]


def check(root: Tree, version: str) -> list[str]:
    """What the vLLM below ``root``, of that version, lacks of the table."""
    return [lack for row in table() if row.applies_to(version) for lack in row.missing(root)]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@cache
def _parse(root: Tree, path: str) -> ast.Module | None:
    file = root / path
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None


def _find(root: Tree, path: str, name: str) -> ast.AST | None:
    """The definition of a dotted name in a file; the last one, since overloads come before it."""
    node: ast.AST | None = _parse(root, path)
    for part in name.split(".") if name else ():
        if node is None:
            return None
        node = {defined: child for child in _scope(node) for defined in _names(child)}.get(part)
    return node


def _scope(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module or class, those below its ``if`` and ``try`` included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if isinstance(child, ast.If | ast.Try):
                yield from _scope(child)


def _names(node: ast.AST) -> set[str]:
    """What a statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=targets):
            return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        case ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
    return set()


def _parameters(node: ast.AST) -> list[str]:
    """Of a function, or of a class's own ``__init__``; the fields of a dataclass."""
    if isinstance(node, ast.ClassDef):
        constructors = [part for part in node.body if "__init__" in _names(part)]
        if not constructors:
            return [name for part in node.body if isinstance(part, ast.AnnAssign) for name in _names(part)]
        node = constructors[-1]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _members(node: ast.AST) -> set[str]:
    """Attributes and methods of a class, keys of a dict, keys of what a function returns, definitions of a module."""
    found = {name for part in _scope(node) for name in _names(part)} if hasattr(node, "body") else set()
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) if isinstance(node, ast.ClassDef):
                found.add(name)
            case ast.Dict(keys=keys) if not isinstance(node, ast.ClassDef | ast.Module):
                found |= {key.value for key in keys if isinstance(key, ast.Constant)}
    return found


def _routes(node: ast.AST) -> set[str]:
    routes = set()
    for decorator in getattr(node, "decorator_list", ()):
        match decorator:
            case ast.Call(func=ast.Attribute(attr=method), args=[ast.Constant(value=path), *_]):
                routes.add(f"{method.upper()} {path}")
    return routes


def _plain(node: ast.AST) -> str:
    """The tree of an expression or statement, wherever it stands."""
    return ast.dump(node.value if isinstance(node, ast.Expr) else node)


def wheel(version: str) -> Path:
    """The CUDA wheel for x86-64 Linux in ``.cache/wheels``, fetched if it is not there yet."""
    folder = ROOT / ".cache" / "wheels"
    if not any(folder.glob(f"vllm-{version}-*.whl")):
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
        subprocess.run(
            [*pip, "--only-binary=:all:", *platforms, "--dest", str(folder), f"vllm=={version}"],
            check=True,
            # A broken download goes on where it was, by a pip that can; others do not know the variable.
            env=os.environ | {"PIP_RESUME_RETRIES": "20"},
        )
    (path,) = folder.glob(f"vllm-{version}-*.whl")
    return path


def pinned() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = (each for each in project["optional-dependencies"]["cuda"] if each.startswith("vllm=="))
    return requirement.removeprefix("vllm==")


def installed() -> tuple[Path, str]:
    """The folder that has the installed ``vllm``, of whichever flavour, and its version."""
    (package,) = packages_distributions()["vllm"]
    found = distribution(package)
    return Path(str(found.locate_file(""))), found.version.partition("+")[0]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("versions", nargs="*", default=[pinned(), OLDEST])
    args = options.parse_args()
    roots: dict[str, Tree] = {}
    if args.quick:
        root, version = installed()
        roots[version] = root
    else:
        roots = {version: zipfile.Path(wheel(version)) for version in args.versions}
    lacks = {version: check(root, version) for version, root in roots.items()}
    figures = []
    for version in roots:
        figures.append(Figure(f"{version}: declarations", sum(row.applies_to(version) for row in table()), ""))
        figures.append(at_most(f"{version}: broken", len(lacks[version]), "", 0))
    wheels = {version: str(root.root.filename).rpartition("/")[2] for version, root in roots.items() if not args.quick}
    write("contract-quick" if args.quick else "contract", figures, wheels=wheels, broken=lacks)
    for version, broken in lacks.items():
        print(*(f"vLLM {version}: {lack}" for lack in broken), sep="\n", end="\n" if broken else "")
    sys.exit(any(lacks.values()))


if __name__ == "__main__":
    main()
