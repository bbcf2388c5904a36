"""Every setting that an error names is one that a user can set."""

import ast
import re

from conftest import ROOT

from oblr.settings.reference import reference

SOURCES = sorted(path for folder in ("src", "callbacks") for path in (ROOT / folder).rglob("*.py"))
CELL = re.compile(r"`([^`]+)`")


def settable() -> set[str]:
    """What ``python src/settings.py`` lists, alone and behind the groups and places of its table, and all above it.

    Options of commands are settable too.
    """
    found, places = set(), [""]
    for line in reference(ROOT / "conf").splitlines():
        if line.startswith("## "):
            titles = CELL.findall(line)
            places = ["", *(title.partition("=")[0] for title in titles if not title.endswith(".py"))]
        elif row := re.match(r"\| `([\w.]+)` \|", line):
            found |= {f"{place}.{row[1]}".lstrip(".") for place in places}
    for path in SOURCES:
        for call in calls(path, "add_argument", "option"):
            found |= {arg.value for arg in call.args if isinstance(arg, ast.Constant)}
    return found | {".".join(name.split(".")[:n]) for name in found for n in range(1, name.count(".") + 1)}


def calls(path, *names):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in names:
            yield node


def test_errors_name_settings_that_there_are():
    named = [
        (call.args[0].value, f"{path.name}:{call.lineno}")
        for path in SOURCES
        for call in calls(path, "SettingError")
        if call.args and isinstance(call.args[0], ast.Constant)
    ]
    known = settable()
    assert len(named) > 100
    assert not [(name, where) for name, where in named if name not in known and not name.startswith("hydra.")]
