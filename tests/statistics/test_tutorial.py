"""The notebook of docs/noisy.md: its cells run, it finds what it has planted, and the page is of it."""

import re

import pytest
import trl_runs  # noqa: F401  # imports TRL, and leaves the environment as it was
import tutorial
from cases import wide
from conftest import ROOT
from tutorial import NOTEBOOK, cells, page, shown

PAGE = NOTEBOOK.with_suffix(".md")


def files():
    folders = (ROOT / name for name in ("docs", "models", "runs/noisy"))
    return {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*")}


@pytest.mark.timeout(1800)  # of minutes, where nobody else computes
@pytest.mark.parametrize("steps", wide(32))
def test_its_cells_run_and_the_doctor_names_the_planted_response(steps, tmp_path, monkeypatch):
    monkeypatch.setenv("NOISY_STEPS", str(steps))
    before = files()
    found, names = tutorial.run(NOTEBOOK, tmp_path)
    finding, planted = names["finding"], names["planted"]
    response = names["jump"].responses[finding.response]
    assert (finding.name, finding.step, response.reward) == ("odd_reward", 9, 100.0)
    assert {"prompt": response.prompt, "text": response.text} == planted
    printed = next(cell.printed for cell in found if "print(*said(file)" in cell.text)
    assert re.match(r"1\. A reward is on another scale: response \d+ of prompt \d+ “.* =” of step 9 was\s", printed)
    assert {len(of) for of in names["runs"].values()} == {steps}
    written, pictures = page(found, "noisy")
    assert re.findall(r"\]\((noisy-\d\.png)\)", written) == [*pictures]
    assert all(drawn.startswith(b"\x89PNG") for drawn in pictures.values())
    assert files() == before


def test_the_page_has_the_notebooks_cells_and_pictures():
    """Else: make tutorial."""
    text, at = PAGE.read_text(), 0
    for cell in cells(NOTEBOOK):
        at = text.index(shown(cell), at)
    assert set(re.findall(r"\]\((noisy-\d\.png)\)", text)) == {path.name for path in PAGE.parent.glob("noisy-*.png")}


def test_a_notebook_is_cells_in_their_order(tmp_path):
    notebook = tmp_path / "one.py"
    notebook.write_text(
        "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1\n\n\n"
        "# %%\nprint(x + 1)\nimport matplotlib.pyplot as plt\nplt.plot([0])\n"
        "plt.xlabel('step')\nplt.ylabel('square')\n"
    )
    found, names = tutorial.run(notebook, tmp_path)
    assert names["x"] == 1
    written, pictures = page(found, "one", "*Note.*")
    assert written == (
        "# Title\n\nWords.\n\n```python\nx = 1\n```\n\n"
        "```python\nprint(x + 1)\nimport matplotlib.pyplot as plt\nplt.plot([0])\n"
        "plt.xlabel('step')\nplt.ylabel('square')\n```\n\n```\n2\n```\n\n![square by step](one-1.png)\n\n*Note.*\n"
    )
    assert [*pictures] == ["one-1.png"]
