"""The report of an evaluation: its figures, and every response, on the page that runs have."""

import base64
import csv
import gzip
import json

import pytest
import yaml
from conftest import run_script
from test_report import HOSTILE, data_of, make_run, opened, unreadable  # noqa: F401
from test_report_size import read_piece

from oblr.evaluation.attempts import Attempts
from oblr.evaluation.records import Record, rollouts
from oblr.report.evaluations import evaluations, write_evaluation

PROBLEMS = 6


def make_evaluation(folder, model="models/one", right=2, reward=False):
    """Six problems of two levels, with two responses to each: to the first ``right`` both are right, then none."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": model, "samples": 2, "paths": {"runs": str(folder)}}))
    record = Record(folder, "sums", {"model": model, "problems": PROBLEMS, "chunk": 2, "left_out": 1})
    record.begin()
    record.add([attempts(place, place < right, reward) for place in range(PROBLEMS)])
    record.finish([2], {"level": [1, 2] * (PROBLEMS // 2)})
    return folder


def attempts(place, right, reward=False):
    rewards = [0.25, 0.75] if reward else [float(right)] * 2
    answers = None if reward else ["7" if right else None] * 2
    outcomes, parts = ["scored", "timeout"], [{"sum": rewards[0]}, {}]
    return Attempts(
        f"sums/{place}", "3 + 4", "7", ["it is 7", HOSTILE], answers, rewards, [3, 9], [False, True], outcomes, parts
    )


def test_responses_are_kept_as_in_training(tmp_path):
    folder = make_evaluation(tmp_path / "one")
    rows = [json.loads(line) for line in gzip.decompress(rollouts(folder, "sums").read_bytes()).splitlines()]
    assert len(rows) == 2 * PROBLEMS
    assert rows[1] == {
        **{
            "group": 0,
            "response": 1,
            "problem": "sums/0",
            "prompt": "3 + 4",
            "answer": "7",
            "text": HOSTILE,
            "tokens": 9,
        },
        **{"verdict": "timeout", "reward": 1.0, "reward_parts": {}, "right": True, "read": "7"},
    }
    assert (rows[4]["verdict"], rows[4]["reward_parts"], rows[4]["right"]) == ("truncated", {"sum": 0.0}, False)
    graded = make_evaluation(tmp_path / "graded", reward=True)
    assert json.loads(gzip.decompress(rollouts(graded, "sums").read_bytes()).splitlines()[0])["right"] is None


def test_figures_are_those_of_the_summary(tmp_path):
    """On the page and in the CSV, of all problems and of each level; and the responses are those that were kept."""
    folder = make_evaluation(tmp_path / "one")
    page = write_evaluation(folder, evaluations(folder))
    shown, summary = data_of(page.read_text()), json.loads((folder / "sums.json").read_text())
    parts = {"sums": summary, **{f"sums: level={level}": summary["by"][f"level={level}"] for level in (1, 2)}}
    assert {row["configuration"][0]: row["columns"] for row in shown["comparison"]} == {
        name: part["figures"] for name, part in parts.items()
    }
    assert [row["seeds"] for row in shown["comparison"]] == [6, 3, 3]
    with (folder / "report.csv").open() as file:
        found = {(line["benchmark"], line["figure"]): line for line in csv.DictReader(file)}
    for name, part in parts.items():
        for figure, interval in part["figures"].items():
            assert {end: float(found[name, figure][end]) for end in interval} == interval
    (run,) = shown["runs"]
    assert base64.b64decode(run["steps"]["0"]["ranks"][0]) == rollouts(folder, "sums").read_bytes()
    assert run["warnings"] == [[None, "sums: 1 problems whose answer is prose are left out"]]
    assert HOSTILE[:20] not in page.read_text()
    rollouts(folder, "sums").unlink()  # as of an earlier version
    assert data_of(write_evaluation(folder, evaluations(folder)).read_text()) == shown


def test_by_the_command_line(tmp_path):
    """Of several models one page; evaluations and runs do not go together, and have nothing to follow."""
    for place, model in enumerate(("models/one", "models/two")):
        make_evaluation(tmp_path / "both" / model.replace("/", "--"), model, right=2 + place)
    done = run_script("report.py", str(tmp_path / "both"))
    assert done.returncode == 0, done.stderr
    shown = data_of((tmp_path / "both" / "report.html").read_text())
    assert [run["name"] for run in shown["runs"]] == ["models/one", "models/two"]
    assert [row["configuration"] for row in shown["comparison"]][::3] == [
        ["models/one", "sums"],
        ["models/two", "sums"],
    ]
    make_run(tmp_path / "run")
    for options, message in (
        ([str(tmp_path / "run")], f"error: runs: {tmp_path}/run is no evaluation, others are"),
        (["--follow"], f"error: --follow: {tmp_path}/both is an evaluation"),
    ):
        done = run_script("report.py", str(tmp_path / "both"), *options)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(message)


def test_responses_that_have_no_room_on_the_page_are_beside_it(tmp_path, monkeypatch):
    """Of a benchmark all of them, as they were kept."""
    monkeypatch.setattr("oblr.report.evaluations.ROOM", 0)
    folder = make_evaluation(tmp_path / "one")
    page = write_evaluation(folder, evaluations(folder))
    (run,) = data_of(page.read_text())["runs"]
    assert run["steps"] == {}
    ((address, places),) = run["pieces"]
    assert places == [0]
    (of_rank,) = read_piece((folder / address).read_text())["0"]["ranks"]
    assert base64.b64decode(of_rank) == rollouts(folder, "sums").read_bytes()


@pytest.mark.browser
def test_responses_beside_the_page_in_a_browser(tmp_path, opened, monkeypatch):  # noqa: F811
    monkeypatch.setattr("oblr.report.evaluations.ROOM", 0)
    folder = make_evaluation(tmp_path / "one")
    tab = opened(write_evaluation(folder, evaluations(folder)))
    tab.wait_for_selector("details")
    assert tab.locator("details").count() == PROBLEMS


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(tmp_path, opened, scheme):  # noqa: F811
    """Figures as in the CSV; problems and responses, by keyboard; and everybody can read it."""
    folder = make_evaluation(tmp_path / "one")
    tab = opened(write_evaluation(folder, evaluations(folder)), color_scheme=scheme)
    tab.wait_for_selector("details")
    with (folder / "report.csv").open() as file:
        (figure,) = (line for line in csv.DictReader(file) if line["benchmark"] == "sums" and line["figure"] == "avg@2")
    shown = " ".join(tab.locator("#rows tr").nth(1).inner_text().split())
    mean, low, high = (f"{float(figure[end]):.4g}" for end in ("mean", "low", "high"))
    assert shown.startswith(f"sums 6 {mean} [{low}, {high}]")
    assert tab.locator("#step").inner_text() == "sums"
    assert tab.locator("#curves").is_hidden()
    assert tab.locator("details").count() == PROBLEMS
    tab.locator("#which").focus()
    tab.keyboard.press("ArrowDown")
    tab.wait_for_function(f"document.querySelectorAll('details').length === {PROBLEMS - 2}")
    assert tab.locator("summary").first.inner_text() == "0 of 2 right — 3 + 4"
    tab.locator("summary").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("td.text")
    assert tab.locator("td.text").nth(1).inner_text().startswith(HOSTILE[:20])
    assert "no answer found" in tab.locator("details tr").nth(1).inner_text()
    tab.locator("#which").select_option("all problems")
    tab.wait_for_function(f"document.querySelectorAll('details').length === {PROBLEMS}")
    colours = []
    for place in (0, PROBLEMS - 1):
        tab.locator("summary").nth(place).click()
        row = tab.locator("details").nth(place).locator("tr").nth(1)
        colours.append(row.evaluate("row => getComputedStyle(row).backgroundColor"))
    assert colours[0] != colours[1]
    assert unreadable(tab) == []
    assert tab.title() == "OBLR-PO report"
