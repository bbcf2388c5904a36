from functools import partial

import pytest
from conftest import POCKET

from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import SettingError
from oblr.model import load_tokenizer
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rollout.datamodule import RolloutDataModule
from oblr.rollout.hf import HFEngine

PARAMS = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}


def chain_sums(size, seed):
    return ReasoningGymProblems("chain_sum", size, seed, "{expression} =\n", PARAMS)


def make(**changes):
    settings = {
        "engine": "hf",
        "engines": {"hf": partial(HFEngine, str(POCKET), "float32")},
        "train": chain_sums(3000, seed=1),
        "held_out": chain_sums(100, seed=2),
        "reward": ReasoningGymReward(AnswerFormat()),
        "tokenizer": load_tokenizer(str(POCKET)),
        "prompts_per_step": 500,
        "group_size": 2,
        "temperature": 1.0,
        "max_new_tokens": 64,
        "max_model_len": 128,
        "seed": 1,
    }
    return RolloutDataModule(**{**settings, **changes})


def test_training_never_meets_a_held_out_problem():
    data = make()
    held_out = {p.prompt for p in data.held_out}
    first_pass = [data.train[i].prompt for i in range(3000)]
    assert held_out & set(first_pass)  # the stream does repeat some
    taken = [p.prompt for _ in range(5) for p in data.next_problems()]
    assert taken == [prompt for prompt in first_pass if prompt not in held_out][:2500]


def test_position_is_kept_and_the_source_wraps_around():
    data, again = make(train=chain_sums(300, seed=1)), make(train=chain_sums(300, seed=1))
    list(data.next_problems())
    assert data.state_dict() != again.state_dict()
    again.load_state_dict(data.state_dict())
    assert list(data.next_problems()) == list(again.next_problems())


def test_rollouts_are_scored_in_order():
    data = make()
    data.engine.start()
    problems = data.held_out[:5]
    rollouts = data.rollouts(problems, data.sampling, seed=0)
    assert [r.problem for r in rollouts] == [p for p in problems for _ in range(2)]
    for rollout in rollouts:
        assert rollout.prompt_ids == data.encode(rollout.problem)
        assert rollout.reward == data.reward(rollout.problem, rollout.text, rollout.completion)
        assert "<|endoftext|>" not in rollout.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "sglang"}, r"rollout\.engine: 'sglang'"),
        ({"prompts_per_step": 0}, r"rollout\.prompts_per_step: 0"),
        ({"group_size": 0}, r"rollout\.group_size: 0"),
        ({"temperature": 0.0}, r"rollout\.temperature: 0"),
        ({"max_new_tokens": 128}, r"rollout\.max_model_len: .*exceeds 128"),
        ({"reward": lambda *_: float("nan")}, "reward: .*nan"),
        ({"train": chain_sums(100, seed=2)}, r"data\.train: every problem is held out"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        list(make(**changes).next_problems())
