"""The settings of a class of ours: its constructor's arguments, read from the source.

Nothing is imported for that, since torch would be. An argument's annotation says what the setting may be, with the
ranges of :mod:`oblr.kinds`; the ``Args:`` of the docstring say what it means. ``Given`` arguments are no settings.
"""

import ast
import builtins
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from oblr.kinds import GIVEN, Part
from oblr.settings.kinds import Parts, Section, Setting

OURS = ("oblr.", "callbacks.")
#: Modules that are imported to know what an annotation means, beside the standard library.
QUICK = ("oblr.kinds",)
#: `` :class:`~a.b.C` `` and the like; of a number, as in `` :data:`MOST` ``, the reference has the value.
ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
#: An argument, or several, in the ``Args:`` of a docstring.
ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


class Imported(NamedTuple):
    """From a module, or, without a name, the module."""

    module: str
    name: str = ""


class Argument(NamedTuple):
    """A constructor's argument, the module that its annotation is written in, and the setting that it takes."""

    name: str
    annotation: ast.expr | None
    module: str
    setting: str


class _AnyClass(type):
    """``torch`` in ``torch.optim.Optimizer`` is taken for a class as well, and so is what comes of it."""

    room = ""

    def __getattr__(cls, name: str) -> "_AnyClass":
        if name.startswith("__"):
            raise AttributeError(name)
        return _named("")


def _named(room: str) -> _AnyClass:
    """A stand-in for a class of a room, where annotations are evaluated; room "": for anybody else's."""
    return _AnyClass("Class", (), {"room": room, "__class_getitem__": classmethod(lambda cls, _: cls)})


@functools.cache
def declared(target: str) -> Section | None:
    """Settings of the class or function of ours with this full name; None where there is none.

    What takes any keyword has ``*``.
    """
    module, _, name = target.rpartition(".")
    definition = definitions(module).get(name)
    if not isinstance(definition, ast.ClassDef | ast.FunctionDef):
        return None
    said = dict(_said(definition, module))
    return {
        argument.setting: Setting(kind, said.get(argument.name, ""))
        for argument in _arguments(definition, module)
        if (kind := kind_of(_evaluated(argument.annotation, argument.module))) is not GIVEN
    }


@functools.cache
def definitions(module: str) -> Mapping[str, ast.AST | Imported]:
    """The definitions and imports of a module by name; none where there is no such module."""
    try:
        place = find_spec(module)
    except (ImportError, ValueError):
        return {}
    if place is None or place.origin is None:
        return {}
    found: dict[str, ast.AST | Imported] = {}
    for node in ast.parse(Path(place.origin).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = Imported(alias.name if alias.asname else top)
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            found |= {alias.asname or alias.name: Imported(source, alias.name) for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


def beside(target: str) -> list[str]:
    """Full names of the classes and functions in the package of ours that is most like the one of ``target``."""
    package, *rest = target.split(".")
    (top,) = find_spec(package).submodule_search_locations  # type: ignore[union-attr,misc]
    folders = [path.name for path in Path(top).iterdir() if path.is_dir() and not path.name.startswith("_")]
    (room,) = get_close_matches(rest[0], folders, 1, cutoff=0) or [""]
    files = sorted(Path(top, room).rglob("*.py"))
    modules = [".".join((package, *file.relative_to(top).with_suffix("").parts)) for file in files]
    return [
        f"{module}.{name}"
        for module in modules
        for name, node in definitions(module).items()
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not name.startswith("_")
    ]


class _Names(dict[str, Any]):
    """The meaning of the names in a module's annotations, found when one is asked for."""

    def __init__(self, module: str):
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> Any:
        node = definitions(self.module).get(name)
        if node is None:
            return getattr(builtins, name, _named(""))
        if isinstance(node, Imported):
            if node.module in QUICK or node.module.partition(".")[0] in sys.stdlib_module_names:
                there = import_module(node.module)
                return getattr(there, node.name) if node.name else there
            return _Names(node.module)[node.name] if node.module.startswith(OURS) else _named("")
        if isinstance(node, ast.ClassDef):
            fields = any(isinstance(base, ast.Name) and base.id == "TypedDict" for base in node.bases)
            return declared(f"{self.module}.{name}") if fields else _named(".".join(self.module.split(".")[:2]))
        return _evaluated(node, self.module)


def _evaluated(node: ast.AST | None, module: str) -> Any:
    if node is None:
        return Any
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    return eval(compile(ast.Expression(node), module, "eval"), {}, _Names(module))  # type: ignore[arg-type]


def kind_of(hint: Any) -> Any:
    """A setting's, by the annotation of the argument; ``Any`` where that is nothing that YAML could say."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        named = [mark for mark in hint.__metadata__ if mark is GIVEN or isinstance(mark, Part)]
        return named[0] if named else Annotated[(kind_of(parts[0]), *hint.__metadata__)]
    if origin in (Union, UnionType):
        kinds = [kind_of(part) for part in parts]
        if not any(isinstance(kind, Part | Parts) for kind in kinds):
            return Union[tuple(kinds)]  # noqa: UP007
        first, *others = [kind for kind in kinds if kind is not NoneType]
        if others:
            return Any
        return Part(first.room, optional=NoneType in kinds) if isinstance(first, Part) else first
    if origin is Callable:
        kind = kind_of(parts[-1])
        return kind if isinstance(kind, Part) else Part()
    if origin in (list, tuple, Sequence):  # YAML has lists alone
        return list[kind_of(parts[0])]  # type: ignore[misc]
    if origin in (dict, Mapping):
        kind = kind_of(parts[1])
        return Parts(kind) if isinstance(kind, dict | Part) else dict[str, kind]  # type: ignore[valid-type]
    if isinstance(hint, _AnyClass):
        return Part(hint.room)
    return hint if origin is Literal or isinstance(hint, dict) or hint in (bool, int, float, str, NoneType) else Any


def _arguments(definition: ast.ClassDef | ast.FunctionDef, module: str) -> list[Argument]:
    """The arguments of a function or constructor; those of its bases of ours where a class has no constructor."""
    if isinstance(definition, ast.FunctionDef):
        taken = definition.args
        named = (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)
        plain = [Argument(one.arg, one.annotation, module, one.arg) for one in named]
        return plain + [Argument(one.arg, one.annotation, module, "*") for one in (taken.kwarg,) if one is not None]
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return _arguments(node, module)[1:]
    derived = [argument for base, there in _bases(definition, module) for argument in _arguments(base, there)]
    marks = {ast.unparse(mark).split("(")[0] for mark in (*definition.decorator_list, *definition.bases)}
    if marks.isdisjoint(("dataclass", "TypedDict")):
        return derived
    return derived + [
        Argument(node.target.id, node.annotation, module, node.target.id)
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if not re.search(r"\bClassVar\b|init=False", ast.unparse(node))
    ]


def _bases(definition: ast.ClassDef, module: str) -> Iterator[tuple[ast.ClassDef, str]]:
    for base in definition.bases:
        name, there = ast.unparse(base), module
        node = definitions(there).get(name)
        if isinstance(node, Imported) and node.module.startswith(OURS):
            there, name = node
            node = definitions(there).get(name)
        if isinstance(node, ast.ClassDef):
            yield node, there


def _said(definition: ast.ClassDef | ast.FunctionDef, module: str) -> Iterator[tuple[str, str]]:
    """Arguments with what the docstring says of them, those of the classes that this one is derived from before."""
    for base, there in _bases(definition, module) if isinstance(definition, ast.ClassDef) else ():
        yield from _said(base, there)
    _, _, section = (ast.get_docstring(definition) or "").partition("Args:\n")
    for names, meaning in ENTRY.findall(section.split("\n\n")[0]):
        for name in names.split(", "):
            yield name, _meaning(name, " ".join(meaning.split()), module)


def _meaning(name: str, said: str, module: str) -> str:
    """In Markdown, as the reference has it; what is said elsewhere, ``as for`` a function or class, is said there."""
    if elsewhere := re.fullmatch(r"as for :\w+:`~([\w.]+)`\.?", said):
        section = declared(elsewhere[1])
        return section[name].meaning if section and name in section else ""

    def shown(role: re.Match[str]) -> str:
        node = definitions(module).get(role[1])
        return str(node.value) if isinstance(node, ast.Constant) else f"`{role[1]}`"

    return re.sub(r"\bNone\b", "null", ROLE.sub(shown, said)).replace("``", "`").removesuffix(".")
