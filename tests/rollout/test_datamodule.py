from functools import partial

import broken_rewards
import lightning as L
import pytest
from cases import wide
from conftest import POCKET

from oblr.data.mixture import Mixture
from oblr.data.procedural import ReasoningGymProblems
from oblr.data.shuffled import Shuffled
from oblr.errors import EngineDiedError, SettingError
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rollout.datamodule import RolloutDataModule
from oblr.rollout.hf import HFEngine

PARAMS = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}


def chain_sums(size, seed, terms=3, template="{expression} =\n"):
    return ReasoningGymProblems("chain_sum", size, seed, template, PARAMS | {"min_terms": terms, "max_terms": terms})


def make(**changes):
    settings = {
        "engine": "hf",
        "engines": {"hf": partial(HFEngine, str(POCKET), "float32")},
        "train": chain_sums(3000, seed=1),
        "held_out": chain_sums(100, seed=2),
        "reward": ReasoningGymReward(AnswerFormat()),
        "tokenizer": load_tokenizer(str(POCKET)),
        "end_ids": [0],
        "prompts_per_step": 500,
        "group_size": 2,
        "temperature": 1.0,
        "max_new_tokens": 64,
        "max_model_len": 128,
        "seed": 1,
    }
    return RolloutDataModule(**{**settings, **changes})


def problems_of(data, steps):
    """Of the next steps, whose rollouts are then done."""
    found = []
    for step in range(steps):
        drawn = data.drawing.of_step(step, data.progress.position)
        data.progress = data.progress.after(drawn)
        found.append(drawn.problems)
    return found


def test_training_never_meets_a_held_out_problem():
    data = make()
    held_out = {p.prompt for p in data.held_out}
    first_pass = [data.train[i].prompt for i in range(3000)]
    assert held_out & set(first_pass)  # the stream does repeat some
    taken = [p.prompt for step in problems_of(data, 5) for p in step]
    assert taken == [prompt for prompt in first_pass if prompt not in held_out][:2500]


def test_position_is_kept_and_the_source_wraps_around():
    data, again = make(train=chain_sums(300, seed=1)), make(train=chain_sums(300, seed=1))
    first = problems_of(data, 1)
    assert data.state_dict() != again.state_dict()
    again.load_state_dict(data.state_dict())
    assert problems_of(data, 1) == problems_of(again, 1) != first


def test_a_prompt_may_just_fit():
    data = make()
    longest = max(len(data.encode(p)) for p in [*data.held_out, *(data.train[i] for i in range(3000))])
    make(max_model_len=longest + 64)
    with pytest.raises(SettingError, match=r"^rollout\.max_model_len: "):
        make(max_model_len=longest + 63)


def test_one_problem_that_is_not_held_out_is_enough():
    """It is met again and again, and more are skipped than there are."""
    data = make(train=chain_sums(10, seed=2), held_out=chain_sums(9, seed=2), prompts_per_step=3)
    assert len({p.prompt for p in data.drawing.of_step(0, 0).problems}) == 1


class Run:
    """One rank of several: all that tells it which problems are its own."""

    def __init__(self, rank, ranks):
        self.global_rank, self.world_size, self.current_epoch = rank, ranks, 0


@pytest.mark.parametrize("ranks", [2, *wide(1, 3)])
def test_a_resumed_run_sees_the_problems_of_an_uninterrupted_one_on_any_number_of_ranks(ranks, monkeypatch):
    source = chain_sums(20, seed=1)
    parts = {"a": Shuffled(source, seed=1), "b": Shuffled(chain_sums(9, seed=2), seed=1)}
    train = Mixture(parts, {"a": 1, "b": 2}, seed=1)
    settings = {"train": train, "held_out": chain_sums(3, seed=1), "prompts_per_step": 6}
    data = make(**settings)
    steps = [[p.id for p in step] for step in problems_of(data, 10)]  # several passes

    def shares(state):
        """Of the next step, what each rank asks its engine for."""
        for rank in range(ranks):
            resumed = make(**settings | {"train": Mixture(parts, {"a": 1, "b": 2}, seed=1)})
            resumed.load_state_dict(state)
            asked = []
            monkeypatch.setattr(RolloutDataModule, "run", Run(rank, ranks))
            monkeypatch.setattr(resumed, "scored", lambda problems, *_, asked=asked: asked.extend(problems) or [])
            resumed.next_batch()
            yield from (p.id for p in asked)

    half = make(**settings)
    problems_of(half, 4)
    assert list(shares(half.state_dict())) == steps[4]


def in_a_run(**changes):
    """A data module with an engine and the policy's weights, at the first step."""
    data = make(**changes)
    data.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    data.weights = PolicyModel(load_model(str(POCKET), "float32"), 1.0).weights
    data.setup("fit")
    return data


def test_rollouts_are_scored_in_order():
    data = in_a_run()
    problems = data.held_out[:5]
    rollouts = data.rollouts(problems, data.sampling, range(5))
    assert [r.problem for r in rollouts] == [p for p in problems for _ in range(2)]
    for rollout in rollouts:
        assert rollout.prompt_ids == data.encode(rollout.problem)
        assert rollout.reward == data.reward(rollout.problem, rollout.text, rollout.completion)
        assert "<|endoftext|>" not in rollout.text


class Counting(HFEngine):
    """Says what it is asked for, and dies as often as it is told to."""

    def __init__(self, deaths_in_generate=0, deaths_in_sync=0):
        super().__init__(str(POCKET), "float32")
        self.calls, self.deaths = [], {"generate": deaths_in_generate, "sync": deaths_in_sync}

    def start(self):
        self.calls.append("start")
        super().start()

    def sync(self, weights, version):
        self.calls.append("sync")
        self.die("sync")
        super().sync(weights, version)

    def generate(self, *asked):
        self.calls.append("generate")
        self.die("generate")
        return super().generate(*asked)

    def sleep(self):
        self.calls.append("sleep")
        self.weight_version = None

    def die(self, where):
        if self.deaths[where]:
            self.deaths[where] -= 1
            raise EngineDiedError("it died")


def counted(deaths_in_generate=0, deaths_in_sync=0, **changes):
    engine = partial(Counting, deaths_in_generate, deaths_in_sync)
    return in_a_run(engine="counting", engines={"counting": engine}, prompts_per_step=4, **changes)


def test_the_engine_sleeps_whenever_it_is_not_needed_and_gets_new_weights_after():
    data = counted()
    assert data.engine.calls == []  # the policy is checked first
    data.next_batch()
    data.next_batch()
    assert data.engine.calls == ["start"] + ["sync", "generate", "sleep"] * 2


def test_an_engine_that_dies_is_restarted_and_refitted_and_nothing_changes(caplog):
    data, undisturbed = counted(deaths_in_sync=1, deaths_in_generate=2), counted()
    assert data.next_batch().rollouts == undisturbed.next_batch().rollouts
    lives = ["start", "sync"] + ["start", "sync", "generate"] * 3
    assert data.engine.calls == [*lives, "sleep"]
    assert [record.message for record in caplog.records if record.name == "oblr.rollout.live"] == [
        f"step 1 is repeated: the rollout engine died and is restarted ({n} of rollout.restarts=3): it died"
        for n in (1, 2, 3)
    ]


def test_an_engine_that_keeps_dying_is_given_up():
    data = counted(deaths_in_generate=3, restarts=1)
    with pytest.raises(EngineDiedError):
        data.next_batch()
    assert data.engine.calls.count("start") == 2
    data.next_batch()  # restarts are counted step by step
    assert data.engine.calls.count("start") == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "sglang"}, r"rollout\.engine: 'sglang'"),
        ({"prompts_per_step": 0}, r"rollout\.prompts_per_step: 0"),
        ({"group_size": 0}, r"rollout\.group_size: 0"),
        ({"temperature": 0.0}, r"rollout\.temperature: 0"),
        ({"max_new_tokens": 128}, r"rollout\.max_model_len: .*exceeds 128"),
        ({"sync_timeout": 0}, r"rollout\.sync_timeout: 0"),
        ({"restarts": -1}, r"rollout\.restarts: -1"),
        ({"reward": broken_rewards.infinite}, "reward: infinite .*inf, .*on problem"),
        ({"train": chain_sums(100, seed=2)}, r"data\.train: every problem is held out"),
        (
            {"train": chain_sums(10**9, seed=1, terms=2), "held_out": chain_sums(3000, seed=2, terms=2)},
            r"data\.train: 20",
        ),
        ({"train": chain_sums(10**9, seed=1, template="Add up.")}, r"prompt: data\.train: .* have the same prompt"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        make(**changes).try_out()
