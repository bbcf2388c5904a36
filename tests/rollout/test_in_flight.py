"""New weights in the midst of responses: who waits for what, and what becomes of failures."""

import threading
from dataclasses import replace

import pytest
from test_ahead import STEPS, begun, of_engine, parts, prompts, seeds, step, taken  # noqa: F401 (fixtures)
from test_datamodule import make

from oblr.errors import EngineDiedError, SettingError


def versions(batch):
    (found,) = {rollout.completion.versions for rollout in batch.rollouts}
    return found


def test_new_weights_come_before_the_batch_that_is_due_and_the_next_is_begun_beside_it(begun):  # noqa: F811
    data = begun(1, in_flight=True)
    data.engine.gates[1] = threading.Event()
    (first,) = step(data)
    assert (first.age, first.token_age, versions(first)) == (0, None, ((1, 3),))

    def open_late():
        with data.engine.asked:  # the third batch is sampled while the second is
            assert data.engine.asked.wait_for(lambda: data.engine.generated == 3, 60)
        data.engine.gates[1].set()

    opener = threading.Thread(target=open_late)
    opener.start()
    (second,) = step(data)
    opener.join()
    assert of_engine(data, "sync") == ["sync 1", "sync 2"]
    assert (versions(second), second.age, second.token_age) == (((1, 1), (2, 2)), 1, 1 / 3)
    assert {rollout.completion.versions for rollout in second.fresh} == {((2, 3),)}
    assert data.engine.in_flight


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_each_prompt_is_trained_on_once_with_weights_that_are_not_too_old(begun, ahead):  # noqa: F811
    now, batches = taken(begun(0)), taken(begun(ahead, in_flight=True))
    assert list(map(prompts, batches)) == list(map(prompts, now))
    assert list(map(seeds, batches)) == list(map(seeds, now))
    assert [batch.age for batch in batches] == [min(t, ahead) for t in range(STEPS)]
    for t, batch in enumerate(batches):
        ages = [(t + 1 - version, tokens) for version, tokens in versions(batch)]
        assert 0 <= min(ages)[0] <= max(ages)[0] <= ahead
        assert (batch.token_age or 0) == sum(age * tokens for age, tokens in ages) / 3
        assert {rollout.completion.versions for rollout in batch.fresh} == {((t + 1, 3),)}


def test_without_it_no_token_says_of_which_weights_it_is(begun):  # noqa: F811
    data = begun(1)
    assert {(versions(batch), batch.token_age) for batch in taken(data)} == {((), None)}
    assert not data.engine.in_flight


def test_evaluations_have_the_newest_weights_once_what_is_under_way_is_scored(begun):  # noqa: F811
    data = begun(1, in_flight=True)
    taken(data, 1)
    (rollout, *_) = data.rollouts(data.held_out, data.sampling, range(0, 40, 10))
    assert rollout.completion.versions == ((2, 3),)
    second = data.next_batch()
    assert (versions(second), second.token_age) == (((1, 3),), 1)
    assert of_engine(data, "sync") == ["sync 1", "sync 2"]


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("lost", ["sync 2", "sync 4", 1, 3, 4])
def test_what_is_lost_with_the_engine_is_sampled_again(begun, ahead, lost, caplog):  # noqa: F811
    """It dies of new weights, paused as it is, or while it samples."""
    undisturbed, data = taken(begun(ahead)), begun(ahead, in_flight=True)
    died = EngineDiedError("it died")
    if isinstance(lost, int):
        data.engine.failures[lost] = died
    else:
        data.engine.misses[int(lost.split()[1])] = died
    batches = taken(data)
    assert list(map(prompts, batches)) == list(map(prompts, undisturbed))
    assert list(map(seeds, batches)) == list(map(seeds, undisturbed))
    for t, batch in enumerate(batches):
        assert t + 1 - min(versions(batch))[0] <= ahead
        assert max(versions(batch))[0] <= t + 1
    assert of_engine(data, "start") == ["start"] * 2
    (message,) = [record.message for record in caplog.records if record.name == "oblr.rollout.live"]
    assert message.endswith("is repeated: the rollout engine died and is restarted (1 of rollout.restarts=3): it died")


def test_an_engine_that_dies_under_an_evaluation_takes_what_is_under_way_with_it(begun):  # noqa: F811
    undisturbed, data = taken(begun(2)), begun(2, in_flight=True)
    batches = [*step(data)]
    data.engine.misses[2] = EngineDiedError("it died")
    data.rollouts(data.held_out, data.sampling, range(0, 40, 10))
    assert not data.upcoming
    batches += taken(data, STEPS - 1)
    assert list(map(prompts, batches)) == list(map(prompts, undisturbed))
    assert batches[1].age == 0


@pytest.mark.parametrize("wrong", [1, 9])
def test_tokens_of_weights_that_a_batch_cannot_have_are_not_trained_on(begun, wrong, monkeypatch):  # noqa: F811
    """Older than when it was begun, or never sent."""
    data = begun(1, in_flight=True, restarts=0)
    taken(data, 2)
    data.upcoming.settle()  # the third batch, which is of version 2
    data.engine.gates["sampler"] = threading.Event()
    (third,) = step(data)
    assert versions(third) == ((2, 3),)
    response = data.engine.response
    monkeypatch.setattr(data.engine, "response", lambda *of: replace(response(*of), versions=((wrong, 3),)))
    data.engine.gates["sampler"].set()
    with pytest.raises(EngineDiedError, match=f"tokens of version {wrong}, not 3 to 4"):
        data.next_batch()


@pytest.mark.parametrize("done", [1, 3])
def test_a_run_that_goes_on_trains_on_every_prompt_once(begun, done):  # noqa: F811
    undisturbed, killed = taken(begun(2)), begun(2, in_flight=True)
    before, state = taken(killed, done), killed.state_dict()
    killed.teardown("fit")
    again = begun(2, in_flight=True)
    again.load_state_dict(state)
    again.run.current_epoch = done
    batches = [*before, *taken(again, STEPS - done)]
    assert list(map(prompts, batches)) == list(map(prompts, undisturbed))


def test_what_cannot_be():
    with pytest.raises(SettingError, match=r"^rollout\.in_flight: nothing is under way .* \(use rollout\.ahead=1 or"):
        make(in_flight=True)
    with pytest.raises(SettingError, match=r"^rollout\.ahead: 1 needs an engine that samples while"):
        make(in_flight=True, ahead=1)


def test_it_is_refused_in_one_line_before_anything_loads(refused):
    result = refused("rollout.in_flight=true", "rollout.engine=server")
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(
        "error: rollout.in_flight: nothing is under way when weights are replaced (use rollout.ahead=1"
    )
