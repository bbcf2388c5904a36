"""The reference of all settings, made of what they are checked by and of ``conf/``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from oblr.settings.check import CLASSES
from oblr.settings.data import DATA
from oblr.settings.kinds import Part, Parts, Section, in_words
from oblr.settings.scripts import EVAL, PRETRAIN, TRAIN

HEAD = """# Settings

Made by `python src/settings.py > docs/settings.md`. Every setting is checked against this before torch is imported, in
`train.py`, `sweep.py`, `eval.py` and `pretrain.py` alike: a value out of range, a wrong type, null where a value is
needed and a name that is not known end a run in one line, and nothing is written. What takes a model, data or a GPU to
tell is found next. A class of your own has the settings that it says.
"""
COLUMNS = "| setting | may be | shipped | what it is |\n|---|---|---|---|"


def reference(conf: Path) -> str:
    """Markdown."""
    parts = [
        HEAD,
        table("`src/train.py`, and each run of `src/sweep.py`", TRAIN, plain(conf / "train.yaml")),
        table("`src/eval.py`", EVAL, plain(conf / "eval.yaml")),
        table("`src/pretrain.py`", PRETRAIN, plain(conf / "pretrain.yaml")),
        table(
            "`data`",
            {name: setting for name, setting in DATA.items() if name != "*"},
            plain(conf / "data" / "base.yaml"),
        ),
    ]
    found = uses(conf)
    for name, section in CLASSES.items():
        if section and list(section) != ["*"]:
            paths, values = found.get(name, ([], {}))
            title = f"`{name}`" + (f" at {', '.join(f'`{path}`' for path in paths)}" if paths else "")
            parts.append(table(title, section, values))
    return "\n".join(parts)


def plain(file: Path) -> dict[str, Any]:
    """What a file of the configuration says, references as they are written."""
    content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return content


def table(title: str, section: Section, shipped: dict[str, Any]) -> str:
    return "\n".join([f"## {title}\n", COLUMNS, *rows(section, shipped), ""])


def rows(section: Section, shipped: Any, path: str = "") -> Iterator[str]:
    for name, (kind, meaning) in section.items():
        value = shipped.get(name, ...) if isinstance(shipped, dict) else ...
        if isinstance(kind, dict):
            yield from rows({key: setting for key, setting in kind.items() if key != "*"}, value, f"{path}{name}.")
            continue
        said = "" if value is ... or (isinstance(kind, Part | Parts) and isinstance(value, dict)) else cell(value)
        yield f"| `{path}{name}` | {in_words(kind)} | {said} | {meaning.replace('|', chr(92) + '|')} |"


def cell(value: Any) -> str:
    written = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{written}`".replace("|", "\\|").replace("\n", "\\n")


def uses(conf: Path) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Of each class where it stands in the shipped configuration, as ``group=option`` or path, and its first values."""
    found: dict[str, tuple[list[str], dict[str, Any]]] = {}

    def look(content: Any, path: str) -> None:
        if isinstance(content, dict):
            if "_target_" in content:
                places, _ = found.setdefault(content["_target_"], ([], content))
                if path not in places:
                    places.append(path)
            for name, part in content.items():
                look(part, f"{path}.{name}" if path else name)

    for file in sorted(conf.glob("*/*.yaml")):
        group, content = file.parent.name, plain(file)
        if file.read_text().startswith("# @package _global_"):
            look(content, "")
        elif group == "benchmarks" and file.stem == "base":
            look(content, "benchmarks.<name>")
        elif file.stem in ("base", "default", "single") or "_target_" not in content:
            look(content, group)
        else:
            look(content, f"{group}={file.stem}")
    look(plain(conf / "pretrain.yaml"), "")
    return found
