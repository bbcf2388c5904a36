import json

import pytest

from oblr.errors import SettingError
from oblr.evaluation.attempts import Attempts
from oblr.evaluation.measures import per_problem
from oblr.evaluation.records import Record, compare, digest, write_table
from oblr.problem import Problem

SETTINGS = {"model": "m", "temperature": 1.0, "chunk": 2, "problems": 5}


def attempts(number, right=1, answer="7", samples=4):
    rewards = [float(j < right) for j in range(samples)]
    answers = [answer if reward else None for reward in rewards]
    lengths, finished = [3, 4, 5, 64][-samples:], [True, True, True, False][-samples:]
    return Attempts(str(number), "2 + 5 =\u2028\n", answer, ["é\n"] * samples, answers, rewards, lengths, finished)


def written(folder, name="sums", right=1, settings=SETTINGS, answer="7", samples=4):
    """A finished evaluation."""
    folder.mkdir(exist_ok=True)
    record = Record(folder, name, settings)
    record.begin()
    record.add([attempts(number, right, answer, samples) for number in range(settings["problems"])])
    record.finish([1, samples])
    return record


def test_what_is_read_is_what_was_written(tmp_path):
    record = written(tmp_path)
    assert record.complete
    assert Record(tmp_path, "sums", SETTINGS).attempts == record.attempts
    rows = [json.loads(line) for line in record.rows.read_text().split("\n") if line]
    assert [row["pass_rate"] for row in rows] == [0.25] * 5
    summary = json.loads(record.summary.read_text())
    assert summary["settings"] == SETTINGS
    assert summary["example"] == rows[0]
    figures = {name: ends["mean"] for name, ends in summary["figures"].items()}
    assert figures == {"avg@4": 0.25, "pass@4": 1.0, "maj@4": 1.0, "length": 19.0, "truncated": 0.25}


@pytest.mark.parametrize(("written_lines", "torn", "kept"), [(0, "", 0), (2, "", 2), (3, "", 2), (4, '{"id": "4', 4)])
def test_only_whole_chunks_count_after_a_kill(tmp_path, written_lines, torn, kept):
    record = written(tmp_path)
    whole = record.rows.read_text()
    lines = [line + "\n" for line in whole.split("\n")]
    record.rows.write_text("".join(lines[:written_lines]) + torn)
    again = Record(tmp_path, "sums", SETTINGS)
    assert not again.complete
    assert [one.id for one in again.attempts] == [str(number) for number in range(kept)]
    again.begin()
    again.add([attempts(number) for number in range(kept, 5)])
    assert again.rows.read_text() == whole


def test_other_settings_are_refused_and_nothing_is_touched(tmp_path):
    record = written(tmp_path)
    before = record.rows.read_bytes(), record.summary.read_bytes()
    with pytest.raises(SettingError, match=r"^paths.output_dir: .*sums.json has temperature 1.0, .* 0.6 "):
        Record(tmp_path, "sums", SETTINGS | {"temperature": 0.6})
    fewer = {name: value for name, value in SETTINGS.items() if name != "temperature"}
    with pytest.raises(SettingError, match=r"sums.json has temperature 1.0, and this evaluation null "):
        Record(tmp_path, "sums", fewer)
    assert (record.rows.read_bytes(), record.summary.read_bytes()) == before


def test_table(tmp_path):
    written(tmp_path)
    written(tmp_path, "other", right=4)
    sure, quarter = "100.0 [57.1, 100.0]", "25.0 [14.3, 57.1]"
    text = write_table(tmp_path)
    assert (tmp_path / "table.md").read_text() == text
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1  # columns stand below each other
    assert [cells(line) for line in lines] == [
        ["benchmark", "problems", "avg@4, %", "pass@4, %", "maj@4, %", "tokens", "truncated, %"],
        [line.strip("|") for line in lines[1].split("|")[1:-1]],
        ["other", "5", sure, sure, sure, "19", "25.0"],
        ["sums", "5", quarter, sure, sure, "19", "25.0"],
    ]
    assert set(lines[1]) == {"|", "-"}


def test_the_table_says_how_many_problems_are_left_out(tmp_path):
    written(tmp_path, settings=SETTINGS | {"left_out": 3})
    written(tmp_path, "other", settings=SETTINGS | {"left_out": 0})
    assert write_table(tmp_path).splitlines()[4:] == ["", "sums: 3 problems whose answer is prose are left out"]


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_groups_have_figures_of_their_own(tmp_path):
    record = written(tmp_path)
    record.finish([4], {"level": [10, 2, None, 2, 10], "topic": ["b", "a", "a", "a", "[b]"]})
    rows = [cells(line)[:2] for line in write_table(tmp_path).splitlines()[2:]]
    assert rows == [
        *(["sums", "5"], ["sums: level=2", "2"], ["sums: level=10", "2"], ["sums: level=None", "1"]),
        *(["sums: topic=[b]", "1"], ["sums: topic=a", "3"], ["sums: topic=b", "1"]),
    ]


def test_a_summary_of_before_there_were_groups_is_shown(tmp_path):
    record = written(tmp_path)
    summary = json.loads(record.summary.read_text())
    del summary["by"]
    record.summary.write_text(json.dumps(summary))
    assert len(write_table(tmp_path).splitlines()) == 3


def test_comparison(tmp_path):
    written(tmp_path / "a", right=1)
    written(tmp_path / "b", right=2, settings=SETTINGS | {"model": "n"})
    lines = compare(tmp_path / "a", tmp_path / "b").splitlines()
    *words, p = cells(lines[2])
    assert words == ["sums", "5", "avg@4, %", "25.0", "50.0", "+25.0 [-100.0, +100.0]"]  # five cannot tell
    assert p.startswith("0.06")
    assert lines[-1] == '- sums: model is "m" and "n"'


def test_groups_are_compared_too(tmp_path):
    levels, others = {"level": [1, 1, 2, 2, 2]}, {"level": [1, 1, 1, 3, 3]}
    for name, right, groups in (("a", 1, levels), ("b", 2, levels), ("c", 2, others)):
        record = written(tmp_path / name, right=right)
        record.finish([1], groups)
    compared, some = (compare(tmp_path / "a", tmp_path / other).splitlines()[2:] for other in "bc")
    sizes = {line[0]: line[1] for line in map(cells, compared)}
    assert sizes == {"sums": "5", "sums: level=1": "2", "sums: level=2": "3"}
    assert {cells(line)[4] for line in compared if cells(line)[2] == "avg@4, %"} == {"50.0"}
    assert {line[0]: line[1] for line in map(cells, some)} == {"sums": "5", "sums: level=1": "2"}


def test_evaluations_with_numbers_of_samples_of_their_own_are_compared_by_what_both_have(tmp_path):
    written(tmp_path / "a")
    written(tmp_path / "b", samples=2)
    rows = [cells(line)[2] for line in compare(tmp_path / "a", tmp_path / "b").splitlines()[2:]]
    assert rows == ["tokens", "truncated, %"]


def test_votes_are_among_so_many_as_the_figure_says():
    one = Attempts("a", "", "7", [""] * 4, ["7", "8", "8", "8"], [1.0, 0.0, 0.0, 0.0], [1] * 4, [True] * 4)
    values = per_problem([one], [2, 4])
    assert values["maj@2"] == 0.25  # half of the pairs have the right answer, and a tie
    assert values["maj@4"] == 0


@pytest.mark.parametrize(
    "changed", [Problem("b", "1 + 1", "2"), Problem("a", "1 + 2", "2"), Problem("a", "1 + 1", "3")]
)
def test_a_digest_tells_ids_prompts_and_answers_apart(changed):
    assert digest([Problem("a", "1 + 1", "2")]) != digest([changed])
    assert digest([Problem("a", "1 + 1", "2")]) == digest([Problem("a", "1 + 1", "2", {"more": 1})])


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_setting_that_only_one_evaluation_has_is_said(tmp_path, order):
    written(tmp_path / order[0])
    written(tmp_path / order[1], settings=SETTINGS | {"top_p": 0.9})
    (note,) = (line for line in compare(tmp_path / "a", tmp_path / "b").splitlines() if line.startswith("- sums"))
    assert note == "- sums: top_p is " + ("null and 0.9" if order == "ab" else "0.9 and null")


def test_what_cannot_be_compared(tmp_path):
    written(tmp_path / "a")
    written(tmp_path / "b", answer="8")
    (tmp_path / "c").mkdir()
    for other, message in (
        ("b", "problem 0 of sums has two answers"),
        ("c", "no finished benchmark"),
        ("d", "no folder"),
    ):
        with pytest.raises(SettingError, match=f"^compare: .*{message}"):
            compare(tmp_path / "a", tmp_path / other)
