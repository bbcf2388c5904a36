"""Which checkpoints in a folder are whole, by the manifest that is written into each last."""

import json
from pathlib import Path

MANIFEST = "manifest.json"


def is_complete(folder: Path) -> bool:
    """Whether every file is there in its full size; loading looks at the content."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    files = {name: folder / name for name in manifest}
    return all(path.is_file() and path.stat().st_size == manifest[name]["size"] for name, path in files.items())


def by_age(folder: Path) -> list[Path]:
    """The complete checkpoints in ``folder``, the newest last."""
    whole = [path for path in folder.glob("*.ckpt") if is_complete(path)]
    return sorted(whole, key=lambda path: (path / MANIFEST).stat().st_mtime_ns)
