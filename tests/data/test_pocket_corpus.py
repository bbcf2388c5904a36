"""What the pocket base models are pretrained on."""

from collections import Counter
from itertools import islice
from statistics import correlation, mean

import pytest

from oblr.data.pocket_corpus import BEHAVIOURS, MARKER, PAUSE, pocket_corpus
from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import SettingError

SIZE = 2000
PARAMS = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}


def problems(size=SIZE, seed=3):
    return ReasoningGymProblems("chain_sum", size, seed, "{expression} =\n", PARAMS)


def answers(mixture, **settings):
    """What is said to problem 0, 1, …, and whether that is right."""
    said = list(pocket_corpus(problems(), [], 0, mixture, **settings))
    assert len(said) == SIZE
    right = [text.rpartition(MARKER)[2].strip() == p.answer for p, (_, text, _) in zip(problems(), said, strict=True)]
    return said, right


def kind(text, right):
    if MARKER not in text:
        return "unmarked"
    if text.startswith(MARKER):
        return "shortcut"
    return "endless" if "check" in text else "careful" if right else "slip"


def test_behaviours_have_their_shares_and_say_whether_the_text_ends():
    mixture = {"careful": 0.32, "shortcut": 0.28, "slip": 0.12, "unmarked": 0.18, "endless": 0.10}
    said, right = answers(mixture)
    kinds = [kind(text, r) for (_, text, _), r in zip(said, right, strict=True)]
    found = Counter(kinds)
    for name, share in mixture.items():
        assert found[name] / SIZE == pytest.approx(share, abs=0.03), name
    assert all(ends == (name != "endless") for (*_, ends), name in zip(said, kinds, strict=True))
    assert not any(r for r, name in zip(right, kinds, strict=True) if name in ("shortcut", "slip"))


def test_sloppy_steps_are_wrong_one_time_in_three():
    said, _ = answers({"sloppy": 1.0})
    steps = [line for _, text, _ in said for line in text.split("\n")[:-1]]
    wrong = mean(eval(line.split(" = ")[0]) != int(line.split(" = ")[1]) for line in steps)
    assert wrong == pytest.approx(1 / 3, abs=0.02)


def test_pauses_say_nothing_and_are_as_often_in_each_factor_of_two():
    mixture = {"careful": 0.5, "shortcut": 0.5}
    said, right = answers(mixture, longest_pause=128)
    pauses = [text.count(PAUSE) for _, text, _ in said]
    assert min(pauses) == 1
    assert max(pauses) > 100
    halves = Counter(pause.bit_length() for pause in pauses)
    assert all(halves[bits] / SIZE == pytest.approx(1 / 7, abs=0.03) for bits in range(1, 8))
    assert abs(correlation(pauses, list(map(float, right)))) < 0.06
    assert all(text.startswith(PAUSE * pause) for pause, (_, text, _) in zip(pauses, said, strict=True))


def test_held_out_problems_are_not_in_it():
    held_out = list(islice(problems(), 100))
    said = {prompt for prompt, *_ in pocket_corpus(problems(), held_out, 0, {"careful": 1.0})}
    assert said == {p.prompt for p in problems()} - {p.prompt for p in held_out}


def test_an_unknown_behaviour_is_refused_by_name():
    with pytest.raises(SettingError, match=r"mixture: there is no behaviour 'bold'.*careful"):
        pocket_corpus([], [], 0, {"careful": 0.5, "bold": 0.5})
    assert "sloppy" in BEHAVIOURS
