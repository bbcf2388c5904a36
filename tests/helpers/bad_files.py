"""Files of problems that are refused: their name and bytes, the setting that is named, and what is said of the row."""

import gzip

GOOD = b'{"problem": "a", "answer": "b"}\n'
#: None: there is no such file.
BAD_FILES = [
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
    (
        "rows.jsonl",
        GOOD + b'{"problem": {}, "answer": "b"}',
        "data.columns",
        "line 2 has a dict, no text, in .*'problem'",
    ),
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
    (
        "rows.txt",
        b"a\tb",
        "data.path",
        r"rows.txt is no table \(give a file that ends in .jsonl, .jsonl.gz, .json, .json.gz, .csv, ",
    ),
    ("rows.jsonl", GOOD + b'{"problem": "a", "answer": null}', "data.columns", "line 2 has null in .*'answer'"),
    ("rows.jsonl", GOOD + b'{"problem": "a", "answer": NaN}', "data.columns", "line 2 has nan, no number, in"),
    ("rows.jsonl", GOOD + b'{"problem": "a", "answer": [1, null]}', "data.columns", "line 2 has null in"),
    ("rows.jsonl", GOOD + b'{"problem": "a", "answer": [[1], 2]}', "data.columns", "line 2 has a list in"),
    ("rows.jsonl", GOOD + b'{"problem": "a", "answer": {"x": 1}}', "data.columns", "line 2 has a dict, no text,"),
    ("rows.jsonl", b'{"id": null, "problem": "a", "answer": 1}', "data.columns", "line 1 has null in .*'id'"),
    (
        "rows.jsonl",
        GOOD + b'{"problem": "\\ud83d", "answer": 1}',
        "data.path",
        r"line 2 has half a character, .ud83d",
    ),
    ("rows.json", b'[{"problem": "a", "answer": 1}, 7]', "data.path", "rows.json row 2 is not a JSON object"),
    ("rows.json", b'[{"problem": "a"', "data.path", "rows.json is no JSON"),
    ("rows.jsonl.gz", GOOD, "data.path", "cannot read .*rows.jsonl.gz: Not a gzipped file"),
    (
        "rows.jsonl.gz",
        gzip.compress(GOOD, mtime=0)[:-9],
        "data.path",
        "cannot read .*rows.jsonl.gz: Compressed file ended",
    ),
    ("rows.jsonl.gz", gzip.compress(GOOD + b"{}", mtime=0), "data.columns", "rows.jsonl.gz line 2 has no column"),
    ("rows.csv", b"problem,answer,answer\na,b,c\n", "data.path", "rows.csv has two columns 'answer'"),
    (
        "rows.jsonl",
        b'{"problem": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "answer": 1}',
        "data.columns",
        "line 1 has a chat that does not end with the user",
    ),
    (
        "rows.jsonl",
        b'{"problem": [{"role": "user", "content": null}], "answer": 1}',
        "data.columns",
        "line 1 has null in column 'problem.0.content'",
    ),
    (
        "rows.jsonl",
        b'{"problem": [{"role": "tool", "content": "a"}], "answer": 1}',
        "data.columns",
        "line 1 has no message of system, user, assistant in column 'problem.0'",
    ),
    (
        "rows.jsonl",
        b'{"problem": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "answer": 1}',
        "prompt.chat",
        "line 1: text without a chat template has no place for other turns",
    ),
    (
        "rows.jsonl",
        b'{"problem": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}, '
        b'{"role": "user", "content": "b"}], "answer": 1}',
        "data.columns",
        "line 1 has a call of a tool in column 'problem.0'",
    ),
    (
        "rows.jsonl",
        GOOD + b'{"problem": "a", "answer": 1, "answer": 2}',
        "data.path",
        "line 2 is no JSON: an object has two values of 'answer'",
    ),
    ("rows.csv", b"problem,answer\na,b\nc,NaN\n", "data.columns", "rows.csv line 3 has NaN, no number, in .*'answer'"),
    ("rows.parquet", b"PAR1", "data.path", "cannot read .*rows.parquet"),
    ("rows.parquet", None, "data.path", "cannot read .*rows.parquet"),
]
KINDS = [f"{number}, {name}" for number, (name, *_) in enumerate(BAD_FILES)]
