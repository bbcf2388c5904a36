"""The tables of ``docs/settings.md``: all settings, by what they are checked by, and as ``conf/`` has them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from oblr.kinds import Part
from oblr.settings.declared import OURS, declared
from oblr.settings.kinds import Parts, Section, in_words
from oblr.settings.others import OTHERS
from oblr.settings.scripts import DATA, EVAL, PRETRAIN, TRAIN

COLUMNS = "| setting | may be | shipped | what it is |\n|---|---|---|---|"


def reference(conf: Path) -> str:
    """Markdown."""
    parts = [
        table("`src/train.py`, and each run of `src/sweep.py`", TRAIN, plain(conf / "train.yaml")),
        table("`src/eval.py`", EVAL, plain(conf / "eval.yaml")),
        table("`src/pretrain.py`", PRETRAIN, plain(conf / "pretrain.yaml")),
        table(
            "`data`",
            {name: setting for name, setting in DATA.items() if name != "*"},
            plain(conf / "data" / "base.yaml"),
        ),
    ]
    for name, (paths, values) in sorted(uses(conf).items()):
        section = declared(name) if name.startswith(OURS) else OTHERS.get(name)
        if section and list(section) != ["*"]:
            parts.append(table(f"`{name}` at {', '.join(f'`{path}`' for path in paths)}", section, values))
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
