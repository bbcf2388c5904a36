"""Whether a reward runs text, found by following its source from call to call; and which text does nothing when run."""

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from oblr.problem import Problem

#: Functions of the standard library that run what they are given, or load code that it names.
RUNNERS = {
    "builtins": ("eval", "exec", "compile", "__import__"),
    "code": ("InteractiveInterpreter", "InteractiveConsole", "interact"),
    "dill": ("load", "loads"),
    "joblib": ("load",),
    "marshal": ("load", "loads"),
    "os": ("system", "popen", "execv", "execve", "execvp", "execl", "execlp", "posix_spawn", "spawnv", "spawnl"),
    "pickle": ("load", "loads", "Unpickler"),
    "runpy": ("run_module", "run_path"),
    "shelve": ("open",),
    "subprocess": ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "Popen"),
    "yaml": ("load", "unsafe_load", "full_load"),
}
#: Functions that are followed at most; a reward that calls more of them counts as one that runs text.
FOLLOWED = 20_000
MISSING = object()
#: Numbers, in quotation marks too, and names that are no word of the language, none of which is called or looked into;
#: functions of numbers that are called; operators and brackets. Nothing is assigned.
_INERT = re.compile(
    r"""(?:
    (?: 0x[0-9a-fA-F]++ | \d++(?:\.\d*+)?+ | \.\d++ | '[-+.\d]*+' | "[-+.\d]*+" | (?:[a-z_]|[A-Z]++)\d*+ | [)\]}] )
    (?! \w | \s*+[(\[{."'] )
    | (?:sin|cos|tan|exp|log|ln|sqrt)(?=\() | [\s,;+\-*/^%<>(\[{]
    )*+""",
    re.ASCII | re.VERBOSE,
)


def evaluates(reward: Any, problem: Problem | None) -> str:
    """What in the reward runs text, on this problem; "" where nothing is found that does.

    A reward may say so itself, by ``evaluates(problem)`` or by an attribute of that name. Of any other its source and
    all that it calls are read. A call of what is only known when it runs cannot be followed.
    """
    said = getattr(reward, "evaluates", None)
    if said is not None:
        said = said(problem) if callable(said) else said
        return said if isinstance(said, str) else "it says so" if said else ""
    return "" if ours(reward) else runs_text(reward)  # the tests know that ours do not


def inert(code: str) -> bool:
    """Whether text that is run as code, or as a formula, can do nothing but be reckoned with; few other texts are."""
    return _INERT.fullmatch(code) is not None


def ours(reward: Any) -> bool:
    """Whether all of it is this package's."""
    parts = getattr(reward, "parts", {}).values()
    return type(reward).__module__.startswith("oblr.rewards.") and all(ours(part["reward"]) for part in parts)


def runs_text(function: Callable[..., Any]) -> str:
    """Where a function, or what it calls, runs text as code: ``"eval in module.py, line 3"``, or ""."""
    waiting, seen = [(function, None)], set()
    while waiting:
        code, owner = _python(*waiting.pop())
        if code is None or (code.__code__, id(owner)) in seen:
            continue
        seen.add((code.__code__, id(owner)))
        if len(seen) > FOLLOWED:
            return f"more than {FOLLOWED:,} functions"
        for line, found, base in _mentioned(code, owner):
            if runner := _runners().get(id(found)):
                return f"{runner} in {Path(code.__code__.co_filename).name}, line {line}"
            if _followed(found):
                waiting.append((found, base))
    return ""


@cache
def _runners() -> dict[int, str]:
    modules = {name: sys.modules.get(name) for name in RUNNERS}
    for name in ("code", "marshal", "os", "pickle", "runpy", "shelve", "subprocess"):
        modules[name] = importlib.import_module(name)
    return {
        id(getattr(module, name)): name if where == "builtins" else f"{where}.{name}"
        for where, module in modules.items()
        for name in RUNNERS[where]
        if hasattr(module, name)
    }


def _python(function: Any, owner: Any) -> tuple[types.FunctionType | None, Any]:
    """The Python function behind something that can be called, and the object whose method it is."""
    for _ in range(20):
        if isinstance(function, types.FunctionType):
            wrapped = getattr(function, "__wrapped__", None)
            if wrapped is None:
                return function, owner
            function = wrapped
        elif isinstance(function, types.MethodType):
            function, owner = function.__func__, function.__self__
        elif isinstance(function, functools.partial):
            function, owner = function.func, None
        elif isinstance(function, staticmethod | classmethod):
            function = function.__func__
        elif isinstance(function, property):
            function = function.fget
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, type):
            made = inspect.getattr_static(function, "__init__", None)
            function, owner = made, function
        elif isinstance(call := inspect.getattr_static(type(function), "__call__", None), types.FunctionType):
            function, owner = call, function
        else:
            return None, None
    return None, None


def _followed(found: Any) -> bool:
    """Whether it is Python code that is not of the standard library."""
    if isinstance(found, types.ModuleType) or found is None:
        return False
    function, _ = _python(found, None)
    return function is not None and not _standard(function.__code__.co_filename)


@cache
def _standard(file: str) -> bool:
    library = sysconfig.get_path("stdlib")
    return file.startswith("<") or (file.startswith(library) and "site-packages" not in file)


@cache
def _functions(file: str) -> dict[tuple[str, int], ast.AST]:
    """The functions that a file defines, by name and first line."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[tuple[str, int], ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name, min([node.lineno, *(one.lineno for one in node.decorator_list)])] = node
        elif isinstance(node, ast.Lambda):
            found["<lambda>", node.lineno] = node
    return found


def _mentioned(function: types.FunctionType, owner: Any) -> Iterator[tuple[int, Any, Any]]:
    """What the names in a function stand for: a line, the object, and the object that it was reached through."""
    code = function.__code__
    node = _functions(code.co_filename).get((code.co_name, code.co_firstlineno))
    if node is None:
        return
    known = {"self": owner, "cls": owner} if owner is not None else {}
    names = zip(code.co_freevars, function.__closure__ or (), strict=True)
    known |= {name: cell.cell_contents for name, cell in names if _filled(cell)}
    for part in ast.walk(node):
        if isinstance(part, ast.Import | ast.ImportFrom):
            known |= dict(_imported(part, function.__globals__.get("__package__") or ""))
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
            if isinstance(part, ast.Attribute) and _is_super(part.value):
                kind = owner if isinstance(owner, type) else type(owner)
                yield from (
                    (part.lineno, vars(one)[part.attr], owner) for one in kind.__mro__ if part.attr in vars(one)
                )
                continue
            found, base = _resolved(part, known, function.__globals__)
            if found is not MISSING:
                yield part.lineno, found, base


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Any]]:
    for alias in node.names:
        try:
            if isinstance(node, ast.Import):
                module = importlib.import_module(alias.name)
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    (module if alias.asname else sys.modules[alias.name.partition(".")[0]]),
                )
            else:
                module = importlib.import_module("." * node.level + (node.module or ""), package)
                yield alias.asname or alias.name, getattr(module, alias.name)
        except Exception:  # it is not there, as an optional part; the reward would find that out as well
            continue


def _resolved(node: ast.expr, known: dict[str, Any], names: dict[str, Any]) -> tuple[Any, Any]:
    if isinstance(node, ast.Name):
        return known.get(node.id, names.get(node.id, getattr(builtins, node.id, MISSING))), None
    if not isinstance(node, ast.Attribute):
        return MISSING, None
    base, _ = _resolved(node.value, known, names)
    if base is MISSING:
        return MISSING, None
    if isinstance(base, types.ModuleType):
        return vars(base).get(node.attr, MISSING), None
    own = vars(base).get(node.attr, MISSING) if hasattr(base, "__dict__") else MISSING
    if own is MISSING:
        own = inspect.getattr_static(base, node.attr, MISSING)
    return own, base
