"""Data files of others: what they unpack to, what they are, and what stands in them."""

import gzip
import json
import multiprocessing
import os
import resource
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from oblr.data.table import TableProblems
from oblr.errors import SettingError

#: MiB that refusing a file of a few MiB may take.
MOST = 1024


def _read(path: str, limit_mib: int | None, answers: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # the machine is others', too
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        said = f"read {len(TableProblems(path, limit_mib=limit_mib) if limit_mib else TableProblems(path))}"
    except SettingError as error:
        said = str(error)
    answers.send((said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024))


def read(path: Path, seconds: float = 60, limit_mib: int | None = None) -> tuple[str, int]:
    """What a process of its own says of a file that it reads, and the MiB that it has taken."""
    answer, answers = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_read, args=(str(path), limit_mib, answers))
    process.start()
    answers.close()
    try:
        assert answer.poll(seconds), f"nothing after {seconds} seconds"
        return answer.recv()
    finally:
        process.kill()
        process.join()


def refused(path: Path, setting: str) -> str:
    line, taken = read(path)
    assert line.startswith(f"{setting}: ")
    assert str(path) in line
    assert line.count("\n") == 0
    assert taken < MOST
    return f"{line} [{taken} MiB taken]"


GOOD = b'{"problem": "1 + 1 =", "answer": "2"}\n'


def packed(path: Path, part: bytes, times: int) -> Path:
    """A file that unpacks to ``part`` so many times."""
    path.write_bytes(gzip.compress(part) * times)
    return path


@pytest.mark.parametrize(
    ("name", "part", "times"),
    [
        ("line.jsonl.gz", b"a" * 2**20, 1600),
        ("rows.jsonl.gz", GOOD * 20_000, 1500),
        ("empty.jsonl.gz", b"\n" * 2**20, 1600),
        ("objects.jsonl.gz", b"{}\n" * 300_000, 100),
        ("brackets.json.gz", b"[" + b"[]," * 300_000, 100),
        ("fields.csv.gz", b"a," * 2**19, 200),
        ("astral.jsonl.gz", b'{"problem": "\xf0\x9f\x98\x80' + b"a" * 2**20, 400),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_small_archive_unpacks_to_gigabytes(tmp_path, stopped, name, part, times):
    """A gz of a few MiB that unpacks to gigabytes, as one line, as rows, as nothing but brackets."""
    path = packed(tmp_path / name, part, times)
    assert path.stat().st_size < 8 * 2**20
    stopped(refused(path, "data.limit_mib"))


def test_a_parquet_file_repeats_one_text_a_million_times(tmp_path, stopped):
    """A Parquet file of some KiB whose dictionary has one long text, and a million rows that are this."""
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1_000_000, pyarrow.int32()), ["x" * 100_000])
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"problem": text, "answer": text}), path)
    assert path.stat().st_size < 2**20
    stopped(refused(path, "data.limit_mib"))


def test_a_parquet_file_of_nothing_but_nulls(tmp_path, stopped):
    """A Parquet file of some KiB with a hundred million rows of null."""
    path = tmp_path / "rows.parquet"
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema({"problem": pyarrow.string()})) as writer:
        nulls = pyarrow.table({"problem": pyarrow.nulls(5_000_000, pyarrow.string())})
        for _ in range(20):
            writer.write_table(nulls)
    assert path.stat().st_size < 2**20
    stopped(refused(path, "data.limit_mib"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "rows.jsonl.gz", "rows"])
def test_a_data_file_is_a_pipe(tmp_path, stopped, name):
    """A pipe that nobody writes to in the place of a data file."""
    os.mkfifo(tmp_path / name)
    stopped(refused(tmp_path / name, "data.path"))


def test_a_data_file_is_an_endless_device(tmp_path, stopped):
    """A link to /dev/zero in the place of a data file."""
    (tmp_path / "rows.jsonl").symlink_to("/dev/zero")
    stopped(refused(tmp_path / "rows.jsonl", "data.path"))


def test_a_data_file_is_a_folder(tmp_path, stopped):
    """A folder with the name of a data file."""
    (tmp_path / "rows.jsonl").mkdir()
    stopped(refused(tmp_path / "rows.jsonl", "data.path"))


def test_a_data_file_is_a_hole_of_a_terabyte(tmp_path, stopped):
    """A sparse file of a TiB, which takes no room on the disk."""
    with (tmp_path / "rows.jsonl").open("wb") as file:
        file.truncate(2**40)
    stopped(refused(tmp_path / "rows.jsonl", "data.limit_mib"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep", b'{"problem": ' + b"[" * 100_000),
        ("nested", b'{"problem": "a", "answer": "b", "more": ' + b"[" * 300 + b"]" * 300 + b"}"),
        ("objects", b'{"problem": "a", "answer": "b", "more": ' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}"),
        ("digits", b'{"problem": "a", "answer": ' + b"9" * 1_000_000 + b"}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_that_is_too_much_for_a_reader(tmp_path, stopped, name, content):
    """JSON nested a hundred thousand deep, or just so deep that a later step fails, and numbers of a million digits."""
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(GOOD + content + b"\n")
    stopped(refused(path, "data.path"))


@pytest.mark.parametrize("kind", ["names", "columns", "rows"])
def test_a_row_that_takes_time_by_the_square_of_its_length(tmp_path, stopped, kind):
    """Two hundred thousand names, columns or rows, of which only the last is wrong: each compared with all others."""
    names = [f"n{i}" for i in range(200_000)]
    if kind == "names":
        path = tmp_path / "rows.jsonl"
        path.write_text("{" + ", ".join(f'"{name}": 1' for name in [*names, names[-1]]) + "}\n")
    elif kind == "columns":
        path = tmp_path / "rows.csv"
        path.write_text(",".join([*names, names[-1]]) + "\n")
    else:
        path = tmp_path / "rows.json"
        path.write_text(json.dumps([*[{"problem": "a"}] * len(names), 7]))
    line, _ = read(path, seconds=30)
    assert line.startswith("data.path: ")
    stopped(line)


def test_the_user_may_say_that_a_large_file_is_right(tmp_path, stopped):
    """A file that is as large as it looks is read, and a limit that is too small for it is an error of one line."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(b'{"problem": "%d", "answer": "2"}\n' % i for i in range(100_000)))
    assert read(path)[0] == "read 100000"
    line, _ = read(path, limit_mib=1)
    assert line.startswith("data.limit_mib: ")
    stopped(line)
