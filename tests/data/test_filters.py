"""What is left out of a source, and what is said about it."""

import json
import random

import pytest
from conftest import POCKET

from oblr.data.filters import Filtered, PassRate, PromptLength
from oblr.data.ordered import Ordered
from oblr.data.overlap import Disjoint, overlaps
from oblr.data.prompts import PromptFormat, encode, load
from oblr.data.shuffled import Shuffled
from oblr.data.table import TableProblems
from oblr.errors import SettingError
from oblr.problem import Problem

LONG = " ".join(f"word{i}" for i in range(20))
INSTRUCTION = " ".join(f"please{i}" for i in range(15))


def table(folder, *questions, name="rows"):
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(json.dumps({"problem": question, "answer": "1"}) for question in questions))
    return TableProblems(str(path), prompt=PromptFormat("{prompt} " + INSTRUCTION))


def test_overlap_is_found_between_questions_and_dropped_and_told(tmp_path):
    words = LONG.split()
    train = table(
        tmp_path,
        f"Something before: {LONG.upper()}! And after.",  # the whole text
        " ".join(["x", *words[3:16], "y"]),  # 13 words in a row
        " ".join([*words[3:9], "x", *words[9:16]]),  # interrupted
        " ".join(words[3:15]),  # 12 words
        "What is 3 + 4?",
        "what is  3 + 4?",
        "What is 3 - 4?",
        "Only the instruction is shared.",
    )
    held_out = table(tmp_path, LONG, "unrelated", name="held_out")
    other = table(tmp_path, "What is 3 + 4?", " ".join(words[3:18]), name="other")
    left = Filtered(train, "data.train", {"overlap": Disjoint(held_out, {"other": other})})
    assert [p.id for p in left] == ["rows/2", "rows/3", "rows/6", "rows/7"]
    assert left.notes == [
        "data.train: 4 of 8 problems dropped: sharing 13 words in a row, or all, with problems never to be trained on: "
        "2 with 1 of 2 in held_out, 4 with 2 of 2 in other"
    ]


@pytest.mark.parametrize(("count", "found"), [(13, {0}), (12, set())])
def test_thirteen_words_are_a_run_whatever_stands_after_them(count, found):
    short = " ".join(LONG.split()[3 : 3 + count]) + "?"
    assert overlaps([Problem("a", short, "")], [Problem("b", LONG, "")]) == [found]


def test_overlaps_are_those_of_a_plain_search():
    def texts(seed, count):
        rng = random.Random(seed)  # two words, so that runs are shared by chance
        return [Problem(str(i), " ".join(rng.choices("ab", k=rng.randint(1, 60))), "") for i in range(count)]

    def runs(text, length=13):
        words = text.split()
        return [words[i : i + length] for i in range(len(words) - length + 1)] or [words]

    mine, others = texts(1, 40), texts(2, 10)
    plain = [
        {i for i, other in enumerate(others) if any(run in runs(other.prompt) for run in runs(problem.prompt))}
        for problem in mine
    ]
    assert overlaps(mine, others) == plain
    assert any(plain)
    assert not all(plain)


def test_no_overlap_is_no_news(tmp_path):
    train = table(tmp_path, "One?", "Two?")
    left = Filtered(train, "data.train", {"overlap": Disjoint(table(tmp_path, "Three?", name="test"), {})})
    assert list(left) == list(train)
    assert left.notes == []


def test_long_prompts_are_dropped_and_counted(tmp_path):
    train = table(tmp_path, "short", LONG, "also short")
    tokenizer = load(str(POCKET))
    limit = len(encode(tokenizer, train[2].prompt))
    left = Filtered(train, "data.train", {"length": PromptLength(str(POCKET), limit)})
    assert [p.id for p in left] == ["rows/0", "rows/2"]
    assert left.notes == [f"data.train: 1 of 3 problems dropped: prompts longer than data.max_prompt_tokens={limit}"]
    assert len(Filtered(train, "data.train", {"length": PromptLength(str(POCKET), None)})) == 3


def results(folder, *rows):
    path = folder / "results.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_difficulty_keeps_pass_rates_in_an_interval(tmp_path):
    train = table(tmp_path, *"abcdef")
    rates = {"rows/0": 0.0, "rows/1": 0.25, "rows/2": 0.5, "rows/3": 1, "rows/5": 0.75, "test/9": 0.5}
    path = results(tmp_path, *({"id": key, "pass_rate": rate} for key, rate in rates.items()))
    left = Filtered(train, "data.train", {"difficulty": PassRate(path, 0.25, 0.75)}, size=2)
    assert [p.id for p in left] == ["rows/1", "rows/2"]
    (note,) = left.notes
    assert note.startswith("data.train: 3 of 6 problems dropped: pass rates outside [0.25, 0.75], or none in ")
    assert note.endswith("results.jsonl: 1 of them, 'rows/4' for one (1 of its ids are no problem's, 'test/9' for one)")
    with pytest.raises(SettingError, match=r"^data\.train: none of 6 problems is left: .*6 of them, 'rows/0' for one"):
        Filtered(train, "data.train", {"difficulty": PassRate(results(tmp_path, {"id": 0, "pass_rate": 1}), 0, 1)})


@pytest.mark.parametrize(
    ("row", "bounds", "message"),
    [
        ({"id": "a"}, (0, 1), r"data\.difficulty\.path: .*results\.jsonl line 1 has no id with a pass_rate"),
        ({"id": "a", "pass_rate": "high"}, (0, 1), r"data\.difficulty\.path: .*line 1 has no id"),
        ({"id": "a", "pass_rate": 1}, (0.5, 0.4), r"data\.difficulty: \[0\.5, 0\.4\]"),
    ],
)
def test_bad_results(tmp_path, row, bounds, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        PassRate(results(tmp_path, row), *bounds)


def test_an_order_by_pass_rates(tmp_path):
    """The next pass is in the same order but for equal rates, and any place can be had first, as after a resume."""
    train = table(tmp_path, *"abcdefgh")
    rates = {f"rows/{i}": rate for i, rate in enumerate([0.5, 1, 0, 0.5, 0.5, 0.25, 0.5, 0.5])}
    path = results(tmp_path, *({"id": key, "pass_rate": rate} for key, rate in rates.items()))
    easy, hard, given = (Ordered(train, 3, order, path) for order in ("easy_first", "hard_first", "given"))
    passes = [[easy[start + i].id for i in range(8)] for start in (0, 8, 16)]
    assert all([rates[i] for i in one] == sorted(rates.values(), reverse=True) for one in passes)
    assert all(sorted(one) == sorted(rates) for one in passes)
    assert len(set(map(tuple, passes))) > 1
    assert Ordered(train, 3, "easy_first", path)[17].id == passes[2][1]
    assert [rates[hard[i].id] for i in range(8)] == sorted(rates.values())
    assert [given[i].id for i in range(16)] == 2 * list(rates)
    with pytest.raises(SettingError, match=r"^data\.order: easy_first needs pass rates"):
        Ordered(train, 3, "easy_first")
    with pytest.raises(SettingError, match=r"^data\.difficulty\.path: rows/7 has no pass rate in "):
        Ordered(train, 3, "hard_first", results(tmp_path, *({"id": f"rows/{i}", "pass_rate": 1} for i in range(7))))


def test_the_usual_order_is_that_of_the_seed_alone(tmp_path):
    train = table(tmp_path, *"abcdefgh")
    assert [Ordered(train, 3)[i].id for i in range(24)] == [Shuffled(train, 3)[i].id for i in range(24)]
