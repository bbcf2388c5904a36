"""Rollouts are scored while the engine samples, and are what they would be otherwise."""

import time
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from conftest import POCKET
from test_datamodule import chain_sums, in_a_run

from oblr.errors import EngineDiedError
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.pool import RewardPool
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rollout.hf import HFEngine
from oblr.types import Completion


class Marking(ReasoningGymReward):
    """Writes down whose responses it scores. Without a key: each response is scored."""

    key = None

    def __init__(self, file):
        super().__init__(AnswerFormat())
        self.file = file

    def __call__(self, problem, text, completion):
        with open(self.file, "a") as file:
            file.write(f"{problem.id}\n")
        return super().__call__(problem, text, completion)


class Odd(HFEngine):
    """Says what ``habits`` are: silent, or tells of other responses, or of nonsense, or dies after the first batch."""

    def __init__(self, *habits):
        super().__init__(str(POCKET), "float32", batch_size=4)
        self.habits = cycle(habits or [""])

    def generate(self, prompts, sampling, seeds, done=None):
        habit, told = next(self.habits), []

        def tell(query, j, one):
            told.append(one)
            match habit:
                case "tells others":
                    done(query, j, Completion(one.token_ids[:1] + one.token_ids, [-1.0, *one.logprobs], one.finished))
                case "tells nonsense":
                    done(query, j, Completion([10**9, 0], [-1.0, -1.0], True))
                case "is silent":
                    pass
                case _:
                    done(query, j, one)
            if habit == "dies" and len(told) == 6:
                raise EngineDiedError("it died")

        groups = super().generate(prompts, sampling, seeds, tell)
        if habit == "garbles":
            groups[1] = groups[1][:1]
        return groups


def rollouts(file, *habits):
    data = in_a_run(
        engine="odd",
        engines={"odd": partial(Odd, *habits)},
        reward=Marking(str(file)),
        reward_pool=partial(RewardPool, workers=1, level="limits"),
        train=chain_sums(20, seed=1),
        held_out=chain_sums(4, seed=2),
        group_size=3,
        prompts_per_step=4,
        max_new_tokens=16,
    )
    found = data.rollouts(data.held_out, data.sampling, range(0, 40, 10))
    data.teardown("fit")
    return found, Path(file).read_text().split()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """With an engine that tells nothing: all is scored when all has ended."""
    found, asked = rollouts(tmp_path_factory.mktemp("expected") / "asked", "is silent")
    assert len(asked) == 12
    return found


@pytest.mark.parametrize(
    ("habits", "scored"),
    [
        ([""], 12),
        (["tells nonsense"], 12),
        (["tells others"], None),
        (["dies", ""], 12),  # the second life's responses are the first one's
        (["garbles", ""], 12),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_rollouts_do_not_depend_on_what_is_told(habits, scored, tmp_path, expected):
    found, asked = rollouts(tmp_path / "asked", *habits)
    assert found == expected
    assert set(asked) == {one.problem.id for one in expected}
    assert len(asked) >= 12 if scored is None else len(asked) == scored


def test_the_first_are_scored_while_the_engine_samples(tmp_path, monkeypatch):
    """The engine goes on with its second batch when a response of its first has been scored."""
    file, generate, asked = tmp_path / "asked", HFEngine._generate, []

    def waiting(self, rows, sampling, seeds):
        while asked and not file.exists():
            time.sleep(0.01)
        asked.append(rows)
        return generate(self, rows, sampling, seeds)

    monkeypatch.setattr(HFEngine, "_generate", waiting)
    found, _ = rollouts(file)
    assert len(asked) == 3
    assert len(found) == 12
