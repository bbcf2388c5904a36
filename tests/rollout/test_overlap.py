"""Rollouts are scored while the engine samples, and are what they would be otherwise."""

import time
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from cases import wide
from conftest import POCKET
from test_datamodule import chain_sums, in_a_run

from oblr.errors import EngineDiedError
from oblr.problem import Completion
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.pool import RewardPool
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rollout.hf import HFEngine


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

    def __init__(self):
        super().__init__(str(POCKET), "float32", batch_size=4)

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


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("overlap") / "asked"
    data = in_a_run(
        engine="odd",
        engines={"odd": Odd},
        train=chain_sums(20, seed=1),
        held_out=chain_sums(4, seed=2),
        reward=Marking(str(file)),
        reward_pool=partial(RewardPool, workers=1, level="limits"),
        prompts_per_step=4,
        group_size=3,
        max_new_tokens=16,
        vocabulary=10**6,
    )
    yield data
    data.teardown("fit")


def rollouts(data, *habits):
    """Those of an engine with these habits, one a life, and the names of the problems that were scored."""
    data.engine.habits, data.restarted, file = cycle(habits or [""]), 0, Path(data.reward.file)
    file.write_text("")
    found = data.rollouts(data.held_out, data.sampling, range(0, 40, 10))
    return found, file.read_text().split()


@pytest.fixture(scope="module")
def expected(data):
    """With an engine that tells nothing: all is scored when all has ended."""
    found, asked = rollouts(data, "is silent")
    assert len(asked) == 12
    return found


@pytest.mark.parametrize(
    ("habits", "scored"),
    [
        (["tells nonsense"], 12),
        *wide(([""], 12), (["tells others"], None)),
        (["dies", ""], 12),  # the second life's responses are the first one's
        (["garbles", ""], 12),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_rollouts_do_not_depend_on_what_is_told(habits, scored, data, expected):
    found, asked = rollouts(data, *habits)
    assert found == expected
    assert set(asked) == {one.problem.id for one in expected}
    assert len(asked) >= 12
    assert scored is None or len(asked) == scored, sorted(asked)


def test_the_first_are_scored_while_the_engine_samples(data, monkeypatch):
    """The engine goes on with its second batch when a response of its first has been scored."""
    generate, asked = HFEngine._generate, []

    def waiting(self, rows, sampling, seeds):
        while asked and not Path(data.reward.file).read_text():
            time.sleep(0.01)
        asked.append(rows)
        return generate(self, rows, sampling, seeds)

    monkeypatch.setattr(HFEngine, "_generate", waiting)
    found, _ = rollouts(data)
    assert len(asked) == 3
    assert len(found) == 12
