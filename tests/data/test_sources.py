import json
import re

import pytest

from oblr.data.local import JSONLProblems
from oblr.data.pocket_corpus import MIXTURE, pocket_corpus
from oblr.data.procedural import ReasoningGymProblems
from oblr.data.shuffled import Shuffled
from oblr.errors import SettingError

PARAMS = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}


def chain_sums(size=200, seed=0):
    return ReasoningGymProblems("chain_sum", size, seed, "{expression} =\n", PARAMS)


def test_procedural_problems_are_right_and_reproducible():
    problems, again = chain_sums(), chain_sums()
    for problem, same in zip(problems, again, strict=True):
        assert problem == same
        assert eval(problem.prompt.removesuffix("=\n")) == int(problem.answer)


def test_neighbouring_seeds_share_no_problems_shifted_by_one():
    first, second = ([p.prompt for p in chain_sums(seed=seed)] for seed in (0, 1))
    assert first[1:] != second[:-1]
    assert len(set(first) & set(second)) < 20


@pytest.mark.parametrize(
    ("task", "template", "params", "setting"),
    [
        ("no_such_task", "{question}", {}, "data.task"),
        ("chain_sum", "{question}", {"min_terms": 5, "max_terms": 3}, "data.task"),
        ("chain_sum", "{question}", {"no_such": 1}, "data.task"),
        ("chain_sum", "{no_such}", {}, "data.template"),
    ],
)
def test_bad_procedural_settings(task, template, params, setting):
    with pytest.raises(SettingError, match=rf"^{re.escape(setting)}: "):
        ReasoningGymProblems(task, 10, 0, template, params)


def test_jsonl(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"q": f"{i}?", "a": i}) for i in range(3)) + "\n\n")
    problems = JSONLProblems(str(path), "q", "a", "Q: {prompt}\n")
    assert [p.prompt for p in problems] == ["Q: 0?\n", "Q: 1?\n", "Q: 2?\n"]
    assert problems[2].answer == "2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"", "no problems"),
        (b"\n\n", "no problems"),
        (b'{"problem": "a", "answer": "b"}\n{"problem": "a"', "line 2"),
        (b'{"problem": "a", "answer": "b"}\n{"problem": "a"}', "line 2"),
        (b"[1, 2]", "line 1"),
        (b'{"problem": "\xff"}', "cannot read"),
    ],
)
def test_bad_jsonl(tmp_path, content, message):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=rf"^data\.path: .*{message}"):
        JSONLProblems(str(path))


def test_shuffled_is_a_permutation_that_depends_on_the_seed():
    source = chain_sums()
    orders = [[p.id for p in Shuffled(source, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(p.id for p in source)


def test_the_pocket_corpus_mixes_behaviours_and_leaves_out_held_out_problems():
    problems = chain_sums(3000)
    held_out = [problems[i] for i in range(50)]
    rows = list(pocket_corpus(problems, held_out, seed=0))
    prompts = {p.prompt for p in held_out}
    assert rows
    assert not any(prompt in prompts for prompt, _, _ in rows)
    answers = {p.prompt: p.answer for p in problems}
    right = [r.endswith(f"Answer: {answers[p]}") and ends for p, r, ends in rows]
    assert sum(right) / len(rows) == pytest.approx(MIXTURE[0][1], abs=0.03)
    assert sum(not ends for _, _, ends in rows) / len(rows) == pytest.approx(0.10, abs=0.03)
    assert sum("Answer:" not in r for _, r, _ in rows) / len(rows) == pytest.approx(0.18, abs=0.03)
    lengths = sorted(len(r) for _, r, _ in rows)
    assert lengths[-1] > 4 * lengths[0]
