"""What a run depends on besides its settings: data, reward, code, policy and packages, each by digests.

They are noted in ``run.json`` and in every checkpoint, so that a run that goes on can say what is another by then.
"""

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from oblr.run.provenance import CODE, versions

#: Kind → name → digest, or version.
Inputs = dict[str, dict[str, str]]
#: Bytes up to which all of a policy's file is digested. Of larger ones it is the size and pieces at the start, where
#: safetensors keep shapes and places, at the end, and in between: all of an 8B policy would take half a minute.
WHOLE = 64 * 2**20
PIECES, PIECE = 64, 2**16
#: Names that a line has.
SHOWN = 3
#: Kinds whose names the settings tell.
NAMED = ("data", "reward", "policy")
#: What data this process has read.
_read: dict[str, str] = {}


def note_data(name: str, digest: str) -> None:
    """The data called ``name``, a file or a data set of the Hub, has been read."""
    _read[name] = digest


def forget_data() -> None:
    """A run begins."""
    _read.clear()


def found(root: Path, config: Mapping[str, Any], policy: str) -> Inputs:
    """What there is now; the data are those that have been read since :func:`forget_data`.

    Args:
        root: of the code.
        config: the run's configuration; whatever class or function it names has been imported.
        policy: a model folder; a Hub id has a commit of its own.
    """
    return {
        "data": dict(_read),
        "reward": {name: digest_of(Path(file)) for name, file in sorted(foreign(config))},
        "code": {str(path.relative_to(root)): digest_of(path) for path in sorted(code(root))},
        "policy": {path.name: digest_of(path, True) for path in sorted(Path(policy).glob("*")) if path.is_file()},
        "packages": versions(),
    }


def digest_of(path: Path, in_pieces: bool = False) -> str:
    """The first 16 digits of the SHA-256 of a file; ``in_pieces``: or of pieces of a very large one."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size <= WHOLE or not in_pieces:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
        digest = hashlib.sha256(str(size).encode())
        for place in range(PIECES):
            file.seek(place * (size - PIECE) // (PIECES - 1))
            digest.update(file.read(PIECE))
        return digest.hexdigest()[:16]


def digest_of_rows(rows: Iterable[Any]) -> str:
    """The same of rows that are in no file of the user's."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(row).encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def code(root: Path) -> Iterator[Path]:
    """Every file that a run executes or composes its settings of, whatever git knows of it."""
    folders = [root / name for name in CODE if (root / name).is_dir()]
    for folder in folders or [root]:  # the latter in an installed package
        for path in folder.rglob("*"):
            if path.suffix in (".py", ".yaml", ".js", ".sh", ".sbatch") and "__pycache__" not in path.parts:
                yield path


def foreign(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and file of each module with a class or function of somebody else's that the configuration names.

    Of one that is not installed, which the user may change at any time, also whatever of its package or folder has
    been imported.
    """
    for target in set(_targets(config)):
        parts = target.split(".")
        if parts[0] in ("oblr", "callbacks"):
            continue
        modules = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
        name = next((module for module in modules if _file(module)), None)
        if name is None:
            continue
        file = _file(name)
        yield name, file
        if not _is_installed(file):
            files = {other: _file(other) for other in list(sys.modules) if other != "__main__"}
            beside = Path(file).parent
            yield from (
                (other, its)
                for other, its in files.items()
                if its and (other.split(".")[0] == parts[0] or Path(its).parent == beside)
            )


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping) and str(node.get("_target_")).startswith("hydra.utils.get_"):
        yield str(node.get("path"))
    for key, value in node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ():
        if key == "_target_" and isinstance(value, str):
            yield value
        else:
            yield from _targets(value)


def _file(name: str) -> str:
    """The Python file of an imported module; "" where it has none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") and Path(file).is_file() else ""


def _is_installed(file: str) -> bool:
    places = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return any(Path(file).is_relative_to(place) for place in places)


def changed(before: Inputs, now: Inputs) -> list[str]:
    """A line for each kind of which something is another: ``data: train.jsonl was 0123… and is 4567…``."""
    lines = []
    for kind in now:
        others = list((_own if kind in NAMED else _all)(before.get(kind, {}), now[kind]))
        if others:
            more = f"; and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
            lines.append(f"{kind}: {'; '.join(others[:SHOWN])}{more}")
    return lines


def _all(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys([*then, *now]):
        if then.get(name) != now.get(name):
            yield f"{name} was {then.get(name, 'not there')} and is {now.get(name, 'gone')}"


def _own(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What has come or gone alone is told by the settings; what has moved is the same."""
    both = [name for name in then if name in now]
    yield from _all({name: then[name] for name in both}, {name: now[name] for name in both})
    gone, come = ({name: of[name] for name in of if name not in both} for of in (then, now))
    if gone and come and set(gone.values()) != set(come.values()):
        yield f"{_listed(come)} is in the place of {_listed(gone)}"


def _listed(named: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({digest})" for name, digest in named.items())
