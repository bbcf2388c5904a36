"""Pages say what the committed results say, and which code each is of; what results claim, holds."""

import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT
from measured import CHANGED, PAGE, digest, files, results, revisions, row, today
from quoted import cells, put, span, turned, with_ends

#: Results of which some figures miss their targets, as pages say.
MISSED = {
    "advice_exact",
    "doctor",
    "doctor_trl",
    "gradnorm",
    "judged",
    "observers",
    "overlap",
    "ranks",
    "roofline",
    "watched",
}


def test_every_result_says_which_code_it_is_of():
    found = re.findall(r"^(\| \[.* \|) \d{4}-\d\d-\d\d \| (\w{8})(.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    kept = list(revisions())
    assert [start for start, *_ in found] == [row(path, revision) for path, revision in kept]
    for (path, _), (_, then, changed) in zip(kept, found, strict=True):
        stale = then != digest(today(path).read_bytes())
        assert changed == (f", {CHANGED}" if stale else ""), (
            f"python benchmarks/measured.py: {path.stem} is of another script"
        )


def test_claims_hold():
    missed = {name for name in files() if any(figure["holds"] is False for figure in results(name).values())}
    assert missed <= MISSED


@pytest.mark.wide
def test_a_page_that_lacks_a_new_result_is_named(tmp_path):
    """In a copy, by the command of ``make lint``, which finds nothing else."""
    for folder in ("benchmarks", "studies", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("_build", "*.parquet"))
    shutil.copy(ROOT / "README.md", tmp_path)

    path = tmp_path / "benchmarks" / "results" / "observers.json"
    result = json.loads(path.read_text())
    result["figures"][0]["value"] += 0.5
    shown = f" {100 * result['figures'][0]['value']:.1f} % ["
    path.write_text(json.dumps(result))
    command = [sys.executable, "benchmarks/measured.py", "--check"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode != 0
    stale = re.findall(r"^Checking .*/(\w+\.md)", checked.stdout, flags=re.MULTILINE)
    assert stale == ["watching.md"]
    assert any(shown in line for line in checked.stdout.splitlines() if line.startswith("+"))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            "It takes 1.14 [1.1, 1.2]<!--time-->, 5 %<!--share--> of 3.",
            "It takes 2 [1, 3]<!--time-->, 6 %<!--share--> of 3.",
        ),
        ("It takes (−1e-7<!--time-->) and 1,024<!--share-->.", "It takes (2 [1, 3]<!--time-->) and 6 %<!--share-->."),
        (
            "It takes −1.1 to 0.2<!--time-->, from 5 to 6 %<!--share-->.",
            "It takes 2 [1, 3]<!--time-->, from 6 %<!--share-->.",
        ),
        ("It takes 1.14<!--time-->.", None),
        ("It takes 1.14<!--time--> and some<!--share-->.", None),
        ("It takes 1.14<!--time-->, 5 %<!--share--> and 3<!--other-->.", None),
    ],
)
def test_numbers_are_put_where_their_names_are(monkeypatch, capsys, text, written):
    monkeypatch.setitem(sys.modules, "cog", SimpleNamespace(previous=text))
    given = {"time": "2 [1, 3]", "share": "6 %"}
    if written is None:
        with pytest.raises(ValueError, match="are given"):
            put(**given)
    else:
        put(**given)
        assert capsys.readouterr().out == written


def test_figures_are_written_as_pages_have_them():
    of = {
        "row: gap": {"value": -0.52, "low": -1.04, "high": 0.1},
        "row: rate": {"value": -2.5e-5},
    }
    assert with_ends(of["row: gap"], "+.1f") == "−0.5 [−1.0, +0.1]"
    assert turned(of["row: gap"]) == "0.5 [−0.1, 1.0]"
    assert cells(of, "row", {"rate": "g", "none": "g", "gap": ".2f"}) == ["−2.5e-05", "", "−0.52 [−1.04, 0.10]"]
    assert span([0.25, -1.0, 0.1]) == "−1.00 to 0.25"
    assert span([97.1, 96.8], ".0f") == "97"
