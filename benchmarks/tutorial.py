"""Run a notebook of ``docs``, and write the page of it: its cells, what they print, and what they draw.

    python benchmarks/tutorial.py    # docs/noisy.py → docs/noisy.md and its pictures, in minutes: make tutorial

A notebook is a Python script in the percent format: ``# %%`` begins a cell of code, and ``# %% [markdown]`` one of
text, in comments. Jupytext, VS Code and others open it, and it runs as a script too.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "noisy.py"


@dataclass
class Cell:
    """A cell of a notebook.

    Attributes:
        text: Markdown, or code.
        is_code: which of the two.
        printed: by its run.
        drawn: what its pictures show, and the PNG files.
    """

    text: str
    is_code: bool
    printed: str = ""
    drawn: list[tuple[str, bytes]] = field(default_factory=list)


def cells(notebook: Path) -> Iterator[Cell]:
    """Of a script, in their order."""
    _, *parts = re.split(r"^# %%(.*)\n", notebook.read_text(), flags=re.MULTILINE)
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        is_code = "[markdown]" not in kind
        yield Cell((body if is_code else re.sub(r"^# ?", "", body, flags=re.MULTILINE)).strip("\n"), is_code)


def run(notebook: Path, folder: Path) -> tuple[list[Cell], dict[str, Any]]:
    """The cells with what came of each, and the names that are left; all files are in ``folder``, beside ``models``."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    (folder / "models").symlink_to(ROOT / "models")
    found, names = list(cells(notebook)), dict[str, Any]({"__name__": "__main__"})
    with chdir(folder):
        for number, cell in enumerate(found):
            if not cell.is_code:
                continue
            with redirect_stdout(StringIO()) as printed:
                exec(compile(cell.text, f"{notebook.name}, cell {number}", "exec"), names)
            cell.printed = printed.getvalue()
            for figure in map(pyplot.figure, pyplot.get_fignums()):
                shows = [axes.get_ylabel() for axes in figure.axes]
                cell.drawn.append((f"{', '.join(shows)} by {figure.axes[-1].get_xlabel()}", png(figure)))
            pyplot.close("all")
    return found, names


def png(figure: Any) -> bytes:
    """Of 32 colours: lines need no more, and are a third as large."""
    from PIL import Image

    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(32).save(small, "PNG", optimize=True)
    return small.getvalue()


def shown(cell: Cell) -> str:
    """What a page has of a cell, without what came of it."""
    return f"```python\n{cell.text}\n```" if cell.is_code else cell.text


def page(found: list[Cell], name: str, note: str = "") -> tuple[str, dict[str, bytes]]:
    """The page as Markdown, and its pictures by their names; ``note`` stands at its end."""
    blocks, pictures = list[str](), dict[str, bytes]()
    for cell in found:
        blocks.append(shown(cell))
        if cell.printed:
            blocks.append(f"```\n{cell.printed.rstrip()}\n```")
        for shows, drawn in cell.drawn:
            picture = f"{name}-{len(pictures) + 1}.png"
            pictures[picture] = drawn
            blocks.append(f"![{shows}]({picture})")
    return "\n\n".join([*blocks, *filter(None, [note])]) + "\n", pictures


def main() -> None:
    from oblr.run.provenance import revision

    code, start = revision(ROOT), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found, _ = run(NOTEBOOK, Path(folder))
    minutes = (time.monotonic() - start) / 60
    commit, changes, _ = code.partition("+changes")
    note = f"*Run at {commit[:10]}{changes}, in {minutes:.0f} minutes on {os.cpu_count()} cores.*"
    text, pictures = page(found, NOTEBOOK.stem, note)
    for old in NOTEBOOK.parent.glob(f"{NOTEBOOK.stem}-*.png"):
        old.unlink()
    for name, drawn in pictures.items():
        (NOTEBOOK.parent / name).write_bytes(drawn)
    NOTEBOOK.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
