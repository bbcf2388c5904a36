"""Rows of any origin become the same problems; what is wrong with one is said with its file and place."""

import csv
import decimal
import gzip
import json
import os
import pickle
import random
import re
import resource

import datasets
import numpy as np
import pyarrow.parquet
import pytest
from bad_files import BAD_FILES, KINDS

from oblr.data.prompts import PromptFormat
from oblr.data.table import TableProblems
from oblr.errors import SettingError

ROWS = [
    {"question": "How many legs have two cats?", "answer": "#### 2 * 4 = 8\n#### 8"},
    {"question": "  Grüße,\u2028 one?\n", "answer": "#### 1"},
    {"question": 'A comma, and a "quote"', "answer": "#### 1,000"},
]
COLUMNS = {"prompt": "question", "answer": "answer"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(path, rows=ROWS):
    match path.suffix:
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
        case ".csv":
            with path.open("w", newline="", encoding="utf-8-sig") as file:
                (writer := csv.DictWriter(file, rows[0].keys())).writeheader()
                writer.writerows(rows)
        case ".parquet":
            datasets.Dataset.from_list(rows).to_parquet(path)
        case _:  # a folder
            datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(path)
    return str(path)


def copy_of_the_hub(folder, rows=ROWS):
    """As a download of the repository lies on a disk."""
    (folder / "main").mkdir(parents=True)
    write(folder / "main" / "train.parquet", rows)
    write(folder / "main" / "test.parquet", rows[:1])
    files = [{"split": split, "path": f"main/{split}.parquet"} for split in ("train", "test")]
    (folder / "README.md").write_text(
        "---\nconfigs: " + json.dumps([{"config_name": "main", "data_files": files}]) + "\n---\n"
    )


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet", "saved"])
def test_all_origins_give_the_same_problems(tmp_path, name):
    path = write(tmp_path / name)
    problems = TableProblems(path, None, "train", COLUMNS, "####", PromptFormat("Q: {prompt}\n"))
    assert [p.prompt for p in problems] == [f"Q: {row['question'].strip()}\n" for row in ROWS]
    assert [p.answer for p in problems] == ["8", "1", "1,000"]
    assert [p.metadata["question"] for p in problems] == [row["question"].strip() for row in ROWS]
    title = "saved/train" if name == "saved" else "rows"
    assert [p.id for p in problems] == [f"{title}/{i}" for i in range(3)]


def test_a_hub_data_set_and_a_folder_of_copies_instead_of_the_hub(tmp_path):
    copy_of_the_hub(tmp_path / "openai" / "gsm8k")
    whole = TableProblems("openai/gsm8k", "main", "train", COLUMNS, "####", root=str(tmp_path))
    assert [p.id for p in whole] == [f"gsm8k/train/{i}" for i in range(3)]
    assert len(TableProblems(str(tmp_path / "openai" / "gsm8k"), "main", "test", COLUMNS)) == 1
    with pytest.raises(SettingError, match=r"^data\.root: there is no .*openai/other"):
        TableProblems("openai/other", root=str(tmp_path))
    with pytest.raises(SettingError, match=r"^data\.path: .*gsm8k/main \[dev\] cannot be read"):
        TableProblems(str(tmp_path / "openai" / "gsm8k"), "main", "dev", COLUMNS)


def test_a_hub_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        SettingError, match=r"^data\.path: openai/gsm8k/main \[train\] is no file, and the hub does not"
    ):
        TableProblems("openai/gsm8k", "main", "train", COLUMNS)


def test_several_answers_numbers_ids_and_columns_for_rewards(tmp_path):
    rows = [
        {"id": "a", "problem": 7, "final_answer": ["$2$", 3], "summaries": ["x", "y"]},
        {"id": "b", "problem": "?", "final_answer": 0.5, "summaries": []},
        {"id": "c", "problem": "?", "final_answer": True, "summaries": []},
    ]
    columns = {"answer": "final_answer", "references": "summaries", "id": None}
    first, second, third = TableProblems(write(tmp_path / "rows.jsonl", rows), columns=columns)
    assert (first.id, first.prompt, first.answer, first.metadata["references"]) == ("a", "7", "$2$, 3", ["x", "y"])
    assert (second.id, second.answer, third.answer) == ("b", "0.5", "true")


@pytest.mark.parametrize(("name", "content", "setting", "message"), BAD_FILES, ids=KINDS)
def test_bad_files(tmp_path, name, content, setting, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=rf"^{re.escape(setting)}: .*{message}"):
        TableProblems(str(path))


def test_bad_rows_of_other_origins(tmp_path):
    bad = [*ROWS, {"question": "And?", "answer": ""}]
    with pytest.raises(SettingError, match=r"rows\.parquet row 4 has no text in column 'answer'"):
        TableProblems(write(tmp_path / "rows.parquet", bad), columns=COLUMNS)
    with pytest.raises(SettingError, match=r"saved \[train\] row 4 has no text in column 'answer'"):
        TableProblems(write(tmp_path / "saved", bad), columns=COLUMNS)


def test_paths_below_columns_and_chats_of_one_message(tmp_path):
    row = {
        "extra": {"answer": "5", "index": 7},
        "messages": [{"role": "user", "content": "2 + 3"}],
        "a.b": "a dotted name is a name",
    }
    columns = {"prompt": "messages", "answer": "extra.answer", "id": "extra.index", "note": "a.b"}
    path = write(tmp_path / "rows.jsonl", [row])
    (problem,) = TableProblems(path, columns=columns, prompt=PromptFormat("{prompt} ="))
    assert (problem.id, problem.prompt, problem.answer) == ("7", "2 + 3 =", "5")
    assert (problem.metadata["note"], problem.metadata["question"]) == ("a dotted name is a name", "2 + 3")
    (same,) = TableProblems(path, columns=columns | {"prompt": "messages.0.content"})
    assert same.prompt == "2 + 3"
    for missing in (
        "messages.1.content",
        "messages.-1.content",
        "messages.0_0.content",
        "extra.question",
        "extra.answer.0",
    ):
        with pytest.raises(SettingError, match=rf"rows\.jsonl line 1 has no column '{re.escape(missing)}'"):
            TableProblems(path, columns=columns | {"prompt": missing})


def test_numbers_are_said_as_they_are_written(tmp_path):
    numbers = ["0.50", "1e-7", "-0.0", "0.1234567890123456789", "1e999", "12345678901234567890123"]
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"problem": "?", "answer": {text}}}\n' for text in numbers))
    problems = TableProblems(str(tmp_path / "rows.jsonl"))
    assert [problem.answer for problem in problems] == numbers
    assert json.dumps(problems[0].metadata["answer"]) == "0.5"
    assert str(pickle.loads(pickle.dumps(problems[0])).metadata["answer"]) == "0.50"
    exact = pyarrow.table({"problem": ["?"], "answer": [decimal.Decimal("2.500")]})
    pyarrow.parquet.write_table(exact, tmp_path / "rows.parquet")
    assert TableProblems(str(tmp_path / "rows.parquet"))[0].answer == "2.500"


def test_compressed_files_arrays_and_long_fields(tmp_path):
    rows = [{"problem": "x" * 200_000, "answer": "1"}, {"problem": "y", "answer": "2"}]
    plain = (tmp_path / "rows.jsonl", tmp_path / "rows.csv", tmp_path / "rows.json")
    for path in plain[:2]:
        write(path, rows)
    plain[2].write_text(json.dumps(rows, indent=1))
    (tmp_path / "lines.json").write_bytes(plain[0].read_bytes())
    for path in plain:
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        for name in (path, tmp_path / f"{path.name}.gz", tmp_path / "lines.json"):
            problems = TableProblems(str(name))
            assert [(p.prompt, p.answer) for p in problems] == [("x" * 200_000, "1"), ("y", "2")]
            assert [p.id for p in problems] == [f"{name.name.partition('.')[0]}/{i}" for i in range(2)]


def test_choices_by_letter_by_label_and_by_columns(tmp_path):
    by_letter = {"problem": "Which?", "options": ["no", "yes"], "answer": "B"}
    (problem,) = TableProblems(write(tmp_path / "a.jsonl", [by_letter]), choices=["options"])
    assert (problem.prompt, problem.answer) == ("Which?\nA. no\nB. yes", "B")
    by_label = {"problem": "Which?", "choices": {"text": ["no", "yes"], "label": ["1", "2"]}, "answer": "2"}
    path = write(tmp_path / "b.jsonl", [by_label])
    (problem,) = TableProblems(path, choices=["choices.text"], labels="choices.label")
    assert (problem.prompt, problem.answer) == ("Which?\nA. no\nB. yes", "B")
    with pytest.raises(SettingError, match=r"b\.jsonl line 1 has the answer '2', none of \['A', 'B'\]"):
        TableProblems(path, choices=["choices.text"])
    rows = [{"problem": f"{i}?", "right": "yes", "wrong": "no", "also": "nor"} for i in range(40)]
    path = write(tmp_path / "c.jsonl", rows)
    problems = TableProblems(path, columns={"answer": "right"}, choices=["right", "wrong", "also"])
    assert {problem.answer for problem in problems} == {"A", "B", "C"}
    for problem in problems:
        assert f"\n{problem.answer}. yes" in problem.prompt
    assert [p.prompt for p in TableProblems(path, columns={"answer": "right"}, choices=["right", "wrong", "also"])] == [
        p.prompt for p in problems
    ]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_numbers_of_less_precision_are_said_as_they_print(tmp_path, kind):
    """Alone, in lists, in structures; from Parquet and from a copy of a Hub data set."""
    numbers = [0.1, 12.3, 1234.5, -0.25, 3.0]
    column = pyarrow.array(np.array(numbers, kind))
    table = pyarrow.table(
        {
            "problem": [f"{i}?" for i in range(len(numbers))],
            "answer": column,
            "several": pyarrow.ListArray.from_arrays(list(range(len(numbers) + 1)), column),
            "deep": pyarrow.StructArray.from_arrays([column], ["gold"]),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    expected = [np.format_float_positional(number, trim="-") for number in np.array(numbers, kind)]
    assert expected[0] == "0.1"
    for path in ("answer", "several", "deep.gold"):
        found = TableProblems(str(tmp_path / "rows.parquet"), columns={"answer": path})
        assert [problem.answer for problem in found] == expected
    if kind == "float32":
        datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet")).save_to_disk(tmp_path / "saved")
        assert [problem.answer for problem in TableProblems(str(tmp_path / "saved"))] == expected


@pytest.mark.parametrize("text", [True, False])
def test_single_precision_that_somebody_has_written_out(tmp_path, text):
    """Random decimals of up to six digits; doubles, and numbers whose digits all stand there, are what they say."""
    rng = random.Random(0)
    decimals = [f"{rng.randint(-99999, 99999) / 10 ** rng.randint(1, 5):g}" for _ in range(300)]
    decimals = [one for one in decimals if "e" not in one]
    doubles = [repr(rng.uniform(-9, 9)) for _ in range(300)] + ["0.0001220703125", "0.0009765625", "3.000000000000000"]
    written = [repr(float(np.float32(one))) for one in decimals] + doubles
    lines = (f'{{"problem": "?", "answer": {json.dumps(one) if text else one}}}' for one in written)
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    problems = TableProblems(str(tmp_path / "rows.jsonl"))
    assert [float(problem.answer) for problem in problems][: len(decimals)] == [float(one) for one in decimals]
    assert [problem.answer for problem in problems][len(decimals) :] == doubles
    (note,) = problems.notes
    assert re.match(r"rows: \d+ of \d+ answers are read as numbers of single precision: ", note)


def test_a_file_that_takes_more_than_it_may(tmp_path):
    """The limit holds while the file is read, and is as it was afterwards."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"problem": "1", "answer": "{"x" * 80_000_000}"}}')
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(SettingError, match=r"^data\.limit_mib: .*rows\.jsonl takes more than 1 MiB"):
        TableProblems(str(path), limit_mib=1)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(TableProblems(str(path))[0].answer) == 80_000_000


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(SettingError, match=r"^data\.path: .*no regular file"):
        TableProblems(str(tmp_path / "rows.jsonl"))
