"""Rows of any origin become the same problems; what is wrong with one is said with its file and place."""

import csv
import json
import re

import datasets
import pytest

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
    ]
    columns = {"answer": "final_answer", "references": "summaries", "id": None}
    first, second = TableProblems(write(tmp_path / "rows.jsonl", rows), columns=columns)
    assert (first.id, first.prompt, first.answer, first.metadata["references"]) == ("a", "7", "$2$, 3", ["x", "y"])
    assert (second.id, second.answer) == ("b", "0.5")


GOOD = b'{"problem": "a", "answer": "b"}\n'


@pytest.mark.parametrize(
    ("name", "content", "setting", "message"),
    [
        ("rows.jsonl", None, "data.path", "cannot read .*rows.jsonl: No such file"),
        ("rows.jsonl", b"", "data.path", "rows.jsonl has no problems"),
        ("rows.jsonl", b"\n\n", "data.path", "rows.jsonl has no problems"),
        ("rows.jsonl", GOOD + b'{"problem": "a"', "data.path", "rows.jsonl line 2 is no JSON"),
        ("rows.jsonl", b"[" * 100_000, "data.path", "rows.jsonl line 1 is no JSON"),
        ("rows.jsonl", b"[1, 2]", "data.path", "rows.jsonl line 1 is not a JSON object"),
        ("rows.jsonl", GOOD + b'{"problem": "\xff"}', "data.path", r"rows.jsonl: line 2 is not UTF-8 \(byte 45\)"),
        ("rows.jsonl", GOOD + b'{"problem": "a"}', "data.columns", "rows.jsonl line 2 has no column 'answer'"),
        (
            "rows.jsonl",
            GOOD + b'\n{"problem": " ", "answer": "b"}',
            "data.columns",
            "line 3 has no text in .*'problem'",
        ),
        ("rows.jsonl", GOOD + b'{"problem": "a", "answer": []}', "data.columns", "line 2 has no text in .*'answer'"),
        ("rows.jsonl", GOOD + b'{"problem": {}, "answer": "b"}', "data.columns", "line 2 has no text in .*'problem'"),
        (
            "rows.jsonl",
            b'{"id": 1, "problem": "a", "answer": "b"}\n{"id": "1", "problem": "c", "answer": "d"}',
            "data.columns",
            "rows.jsonl line 2 has the id '1' of .*rows.jsonl line 1",
        ),
        ("rows.csv", b"problem,answer\na,b\nc\n", "data.path", "rows.csv line 3 has not as many fields"),
        ("rows.csv", b"problem,answer\na,b\nc,d,e\n", "data.path", "rows.csv line 3 has not as many fields"),
        ("rows.csv", b'problem,answer\na,b\n"c,d\n', "data.path", "rows.csv after line 2: unexpected end"),
        ("rows.csv", b"problem,answer\na,b\nc,\n", "data.columns", "rows.csv line 3 has no text in .*'answer'"),
        ("rows.csv", "problem,answer\na,é\n".encode("latin-1"), "data.path", r"line 2 is not UTF-8 \(byte 17\)"),
        ("rows.csv", b"problem,answer\n", "data.path", "rows.csv has no problems"),
        ("rows.txt", b"a\tb", "data.path", r"rows.txt is no table \(give a file that ends in .jsonl, .csv, .parquet"),
        ("rows.parquet", b"PAR1", "data.path", "cannot read .*rows.parquet"),
        ("rows.parquet", None, "data.path", "cannot read .*rows.parquet"),
    ],
)
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
