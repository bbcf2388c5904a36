"""Rollouts of the next steps while the policy trains: which prompts, of which weights, and what becomes of failures."""

import re
import threading
import time
from functools import partial

import pytest
import torch
from apart import Apart
from conftest import POCKET
from patient_reward import Gated, one
from test_datamodule import chain_sums, make

from oblr.errors import EngineDiedError, GarbledError, RunError, SettingError, StaleEngineError
from oblr.policy.loading import load_tokenizer
from oblr.rewards.pool import RewardPool
from oblr.rollout.datamodule import RolloutDataModule
from oblr.rollout.server import ServerEngine

STEPS = 6


class Run:
    """A trainer, as far as a data module asks."""

    global_rank, world_size, num_devices = 0, 1, 1

    def __init__(self, steps=STEPS):
        self.current_epoch, self.max_epochs = 0, steps


@pytest.fixture(scope="module")
def parts():
    """What runs have in common: it takes seconds to make."""
    pool = RewardPool(one, workers=1, level="limits")
    yield {
        "tokenizer": load_tokenizer(str(POCKET)),
        "train": chain_sums(40, seed=1),
        "held_out": chain_sums(4, seed=2),
        "reward": one,
        "reward_pool": lambda reward: pool,
        "prompts_per_step": 3,
        "end_ids": [Apart.END],
    }
    pool.close()


@pytest.fixture
def begun(monkeypatch, parts):
    """A run with ``ahead``, before its first step."""
    made = []

    def begin(ahead, steps=STEPS, **changes):
        if "reward" in changes:
            changes["reward_pool"] = partial(RewardPool, workers=1, level="limits", timeout=60)
        engine = {"engine": "apart", "engines": {"apart": Apart}}
        data = make(ahead=ahead, **engine | parts | changes)
        monkeypatch.setattr(RolloutDataModule, "run", Run(steps))
        data.weights = lambda: iter([("w", torch.full((2, 3), float(data.weight_version)))])
        data.reward_pool.start()
        made.append(data)
        return data

    yield begin
    for data in made:
        data.upcoming.drop(data.engine.close)
        if data.reward is not one:
            data.reward_pool.close()


def step(data):
    """The next batch, after which the policy moves."""
    batch = data.next_batch()
    yield batch
    data.run.current_epoch += 1


def taken(data, steps=STEPS):
    return [batch for _ in range(steps) for batch in step(data)]


def prompts(batch):
    return [batch.group(q)[0].problem.id for q in range(batch.n_groups)]


def seeds(batch):
    return [rollout.completion.token_ids[0] for rollout in batch.rollouts]


def of_engine(data, *kinds):
    return [call for call, _ in data.engine.calls if call.split()[0] in kinds]


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_each_prompt_is_trained_on_once_and_in_order_with_its_own_seeds(begun, ahead):
    now, batches = taken(begun(0)), taken(begun(ahead))
    assert list(map(prompts, batches)) == list(map(prompts, now))
    assert list(map(seeds, batches)) == list(map(seeds, now))
    assert len({prompt for batch in batches for prompt in prompts(batch)}) == 3 * STEPS


@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
def test_rollouts_are_of_weights_as_old_as_was_asked_for(begun, ahead):
    """The first ones cannot be."""
    batches = taken(begun(ahead))
    assert [batch.age for batch in batches] == [min(t, ahead) for t in range(STEPS)]
    assert [batch.weight_version for batch in batches] == [t + 1 - min(t, ahead) for t in range(STEPS)]
    for batch in batches:
        assert {rollout.completion.token_ids[1] for rollout in batch.rollouts} == {batch.weight_version}


def test_without_it_the_engine_is_asked_for_what_it_always_was(begun):
    data = begun(0)
    batches = taken(data, 2)
    calls = ["start", "sync 1", "generate 2", "sleep", "sync 2", "generate 2", "sleep"]
    assert data.engine.calls == [(call, True) for call in calls]
    assert [batch.fresh for batch in batches] == [batch.rollouts for batch in batches]


def test_the_newest_weights_are_tried_out_in_every_step(begun):
    """What the step compares with the policy is never of older ones."""
    data = begun(1)
    for t, batch in enumerate(taken(data)):
        assert {rollout.completion.token_ids[1] for rollout in batch.fresh} == {t + 1}
        assert batch.fresh is (batch.probe if t else batch.rollouts)
        assert [rollout.problem.id for rollout in batch.fresh][:: len(batch.fresh) // 3] == prompts(batch)
    assert of_engine(data, "sync") == [f"sync {t + 1}" for t in range(STEPS)]


@pytest.mark.parametrize("ahead", [1, 3])
def test_nothing_is_sampled_that_no_step_is_left_for(begun, ahead):
    data = begun(ahead, steps=4)
    taken(data, 4)
    assert of_engine(data, "generate").count("generate 2") == 4
    assert not data.upcoming


def test_the_policy_trains_while_the_engine_samples(begun):
    data = begun(1)
    data.engine.gates[1] = threading.Event()
    (first,) = step(data)  # the second batch is not there yet
    assert first.age == 0
    with data.engine.asked:
        assert data.engine.asked.wait_for(lambda: data.engine.generated == 2, 60)
    time.sleep(0.2)
    data.engine.gates[1].set()
    (second,) = step(data)
    assert (second.age, data.engine.calls[3]) == (1, ("generate 2", False))
    assert first.beside == {}
    assert second.beside.keys() == {"rollout", "reward"}
    assert 0.2 < second.beside["rollout"] < 60 > second.beside["reward"] > 0


@pytest.mark.parametrize("ahead", [1, 2])
def test_weights_are_replaced_between_batches(begun, ahead):
    """The engine itself looks that none are while it samples."""
    data = begun(ahead)
    for number in range(1, 12):
        data.engine.gates[number] = threading.Event()
        threading.Timer(0.05 * number, data.engine.gates[number].set).start()
    assert [batch.age for batch in taken(data)] == [min(t, ahead) for t in range(STEPS)]


def test_the_next_batch_is_sampled_while_the_last_one_is_scored(begun, tmp_path):
    """With two: the one that is due next has been sampled, and waits for its rewards."""
    data = begun(2, reward=Gated(tmp_path / "gate"))
    (tmp_path / "gate").touch()
    step_of = step(data)
    next(step_of)
    (tmp_path / "gate").unlink()
    with data.engine.asked:  # the first, and both ahead
        assert data.engine.asked.wait_for(lambda: data.engine.generated == 3, 60)
    data.upcoming.settle()
    assert not any(one.batch.done() for one in data.upcoming.batches if one.drawn.step > 1)
    (tmp_path / "gate").touch()
    assert [len(batch.rollouts) for batch in taken(data, 2)] == [6, 6]


def test_evaluations_wait_until_the_engine_is_free_and_have_the_newest_weights(begun):
    data = begun(2)
    taken(data, 2)
    for t in (3, 4):
        next(step(data))
        (rollout, *_) = data.rollouts(data.held_out, data.sampling, range(0, 40, 10))
        assert rollout.completion.token_ids[1] == t
        data.run.current_epoch += 1


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_batch_that_is_lost_with_the_engine_is_sampled_again(begun, ahead, number, caplog):
    data, undisturbed = begun(ahead), taken(begun(ahead))
    data = begun(ahead)
    data.engine.failures[number] = EngineDiedError("it died")
    batches = taken(data)
    assert list(map(prompts, batches)) == list(map(prompts, undisturbed))
    assert list(map(seeds, batches)) == list(map(seeds, undisturbed))
    assert all(batch.age <= ahead for batch in batches)
    for t, batch in enumerate(batches):
        assert {rollout.completion.token_ids[1] for rollout in batch.rollouts} == {t + 1 - batch.age}
        assert {rollout.completion.token_ids[1] for rollout in batch.fresh} == {t + 1}
    assert of_engine(data, "start") == ["start"] * 2
    (message,) = [record.message for record in caplog.records if record.name == "oblr.rollout.live"]
    assert message.endswith("is repeated: the rollout engine died and is restarted (1 of rollout.restarts=3): it died")


def test_an_engine_that_keeps_dying_is_given_up(begun):
    data = begun(1, restarts=1)
    taken(data, 1)
    data.upcoming.settle()
    for number in range(3, 9):
        data.engine.failures[number] = EngineDiedError("it died")
    with pytest.raises(EngineDiedError, match="it died"):
        taken(data, 5)
    assert of_engine(data, "start") == ["start"] * 2


def test_two_garbled_answers_to_the_same_batch_are_no_accident(begun):
    data = begun(1)
    data.engine.failures |= {1: GarbledError("nonsense"), 2: GarbledError("nonsense")}
    with pytest.raises(GarbledError):
        taken(data, 2)


@pytest.mark.parametrize("failure", [StaleEngineError("stale"), RunError("lost"), SettingError("reward", "no", "mend")])
def test_other_failures_end_the_run_where_the_batch_is_due(begun, failure):
    data = begun(1)
    data.engine.failures[1] = failure
    taken(data, 1)
    with pytest.raises(type(failure), match=re.escape(str(failure))):
        data.next_batch()


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("done", [1, 3])
def test_a_run_that_goes_on_trains_on_every_prompt_once(begun, ahead, done):
    """Its checkpoint does not know what was under way."""
    undisturbed, killed = taken(begun(ahead)), begun(ahead)
    before, state = taken(killed, done), killed.state_dict()
    killed.teardown("fit")
    again = begun(ahead)
    again.load_state_dict(state)
    again.run.current_epoch = done
    batches = [*before, *taken(again, STEPS - done)]
    assert list(map(prompts, batches)) == list(map(prompts, undisturbed))
    assert list(map(seeds, batches)) == list(map(seeds, undisturbed))
    assert [batch.age for batch in batches[done:]] == [min(t, ahead) for t in range(STEPS - done)]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("ahead", [1, 2])
def test_prompts_of_a_batch_that_was_too_old_are_sampled_again_by_the_newest_weights(begun, ahead, goes_on):
    """At once, or in a run that goes on from the checkpoint after it."""
    undisturbed, data = taken(begun(ahead)), begun(ahead)
    before = taken(data, 3)
    data.again = lambda: True
    if goes_on:
        state = data.state_dict()
        data = begun(ahead)
        data.load_state_dict(state)
        data.run.current_epoch = 3
    (first,) = step(data)
    data.again = lambda: False
    batches = [*before, first, *taken(data, 2)]
    assert list(map(prompts, batches[3:])) == list(map(prompts, undisturbed[2:5]))
    assert [batch.age for batch in batches[3:]] == [0, 1, min(2, ahead)]
    assert seeds(first) == seeds(undisturbed[3])  # of the step that trains on them


@pytest.mark.parametrize("hangs", ["engine", "reward"])
def test_what_is_under_way_does_not_keep_a_run_from_its_end(begun, hangs, tmp_path):
    gate = tmp_path / "gate"
    data = begun(2, reward=Gated(gate))
    gate.touch()
    if hangs == "engine":
        data.engine.gates[1] = threading.Event()
    next(step(data))
    if hangs == "reward":
        data.upcoming.settle()
        gate.unlink()
    begin = time.monotonic()
    data.teardown("fit")
    assert time.monotonic() - begin < 20
    assert not data.upcoming


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_engines_of_the_policys_process_are_refused(refused, engine):
    result = refused("rollout.ahead=1", f"rollout.engine={engine}")
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: rollout.ahead: 1 needs an engine that samples while the policy trains")
    assert f"{engine} computes in its process" in line
    assert "use rollout.engine=server" in line


def test_bad_settings():
    with pytest.raises(SettingError, match=r"^rollout\.ahead: -1 "):
        make(ahead=-1)
    make(ahead=1, engine="server", engines={"server": partial(ServerEngine, str(POCKET), "float32", 128, "log")})
