"""Answers of the engine that are kept: who has them instead of asking, and who must not."""

# ruff: noqa: F811 (fixtures of other tests)

import gzip
import json
from dataclasses import replace

import pytest
from conftest import same, weights
from kept_responses import read_rollouts
from test_ahead import STEPS, begun, of_engine, parts, prompts, seeds, taken  # noqa: F401 (fixtures)

from oblr.errors import EngineDiedError, RunError, SettingError
from oblr.record.curves import read_curves
from oblr.rollout.recording import Recording


def answers(batch):
    """What a batch is made of, but for what is asked beside it."""
    return replace(batch, probe=[], beside={}, token_age=None)


def row_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def going_on(begun, folder, step, ahead=0, **changes):
    """The run whose answers are in ``folder``, from its checkpoint after so many steps."""
    data = begun(ahead, recording=Recording(str(folder), write=True), **changes)
    run = next((row_of(path)["run"] for path in folder.iterdir()), "its name")
    data.load_state_dict({"position": 3 * step, "recording": run})
    data.run.current_epoch = step
    return data


def longer(raw):
    """With a token to a response's id that has no log-probability."""
    row = json.loads(gzip.decompress(raw))
    row["groups"][0][0]["token_ids"].insert(0, 5)
    return gzip.compress(json.dumps(row).encode())


@pytest.fixture
def recorded(begun, tmp_path):
    """Batches of a run with ``ahead`` that was kept, and ``in_flight`` of one that cannot repeat by itself."""

    def record(ahead, **changes):
        data = begun(ahead, recording=Recording(str(tmp_path / "answers"), write=True), **changes)
        batches = taken(data)
        data.upcoming.settle()
        return batches

    return record


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_replay_has_the_batches_as_they_came_whatever_is_ahead_now(begun, recorded, tmp_path, ahead, in_flight):
    of_run = {"in_flight": in_flight and ahead > 0}
    batches = recorded(ahead, **of_run)
    for now in {0, ahead}:
        data = begun(now, recording=Recording("unused", replay=str(tmp_path)))
        found = taken(data)
        assert list(map(answers, found)) == list(map(answers, batches))
        assert [batch.age for batch in found] == [min(t, ahead) for t in range(STEPS)]
        assert not of_engine(data, "generate 2")
        if ahead and of_run["in_flight"]:
            assert [batch.token_age for batch in found[1:]] == [batch.token_age for batch in batches[1:]]
            assert any(0 < age < ahead for age in (batch.token_age for batch in found[1:])) or ahead == 1
        for t, batch in enumerate(found):  # the engine is tried out with the policy as it is
            assert batch.fresh is batch.rollouts or {one.completion.token_ids[1] for one in batch.fresh} == {t + 1}


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("done", [1, 3])
def test_a_run_that_goes_on_asks_for_nothing_that_was_answered(begun, tmp_path, ahead, done):
    undisturbed = taken(begun(ahead))
    killed = begun(ahead, recording=Recording(str(tmp_path), write=True))
    before, state = taken(killed, done), killed.state_dict()
    killed.upcoming.settle()
    killed.teardown("fit")
    again = begun(ahead, recording=Recording(str(tmp_path), write=True))
    again.load_state_dict(state)
    again.run.current_epoch = done
    batches = [*before, *taken(again, STEPS - done)]
    assert list(map(answers, batches)) == list(map(answers, undisturbed))
    again.upcoming.settle()
    asked = [call for call in of_engine(again, "generate") if call == "generate 2"]
    assert len(asked) == STEPS - done - min(ahead, STEPS - done)


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_run_that_is_killed_twice_at_one_step_has_an_engine_for_the_next(begun, tmp_path, ahead):
    """The batch of its first step is there, and as young as can be: nothing has asked the engine for anything."""
    for _ in range(2):
        data = going_on(begun, tmp_path, 1, ahead)
        first = data.next_batch()
        assert first.age == 0
        data.upcoming.drop(data.engine.close)
        for path in tmp_path.glob("step-00000[2-9]-*"):
            path.unlink()
    data = going_on(begun, tmp_path, 1, ahead)
    batches = taken(data, STEPS - 1)
    assert list(map(prompts, batches)) == list(map(prompts, taken(begun(0))))[1:]
    assert [batch.age for batch in batches] == [min(t, ahead) for t in range(STEPS - 1)]
    assert batches[0].fresh is batches[0].rollouts


@pytest.mark.parametrize("versions", [((1, 1), (9, 2)), ((0, 3),)])
def test_tokens_of_weights_that_a_batch_cannot_have_are_not_taken(begun, recorded, tmp_path, versions):
    """The engine counts as dead where it gives such ones; its answer has been written by then."""
    recorded(1, in_flight=True)
    (path,) = tmp_path.glob("answers/step-000002-*")
    row = row_of(path)
    row["groups"][0][0]["versions"] = versions
    path.write_bytes(gzip.compress(json.dumps(row).encode()))
    own = going_on(begun, tmp_path / "answers", 2, 1)
    own.next_batch()
    assert "generate 2" in of_engine(own, "generate")[:1]


def test_answers_of_weights_that_a_checkpoint_does_not_know_are_forgotten(begun, recorded, tmp_path):
    """The run was at its end when it died, and goes on from its second step: it will have other weights."""
    recorded(1)
    kept = [path.name for path in (tmp_path / "answers").iterdir()]
    assert len(kept) == STEPS
    again = going_on(begun, tmp_path / "answers", 2, 1)
    next_batch = again.next_batch()
    assert (next_batch.weight_version, next_batch.age) == (2, 1)
    assert not of_engine(again, "generate 2")
    assert sorted(path.name for path in (tmp_path / "answers").iterdir()) == sorted(kept)[:4]


@pytest.mark.parametrize("known", [{"recording": "another"}, {}])
def test_what_another_runs_engine_has_answered_is_none(begun, recorded, tmp_path, known):
    """A run may go on from elsewhere in a folder that has answers."""
    recorded(0)
    own = begun(0, recording=Recording(str(tmp_path / "answers"), write=True))
    own.load_state_dict({"position": 3, **known})
    own.run.current_epoch = 1
    own.next_batch()
    assert of_engine(own, "generate") == ["generate 2"]
    assert own.state_dict()["recording"] == known.get("recording", own.recording.run) != ""
    assert len(list((tmp_path / "answers").iterdir())) == 2


def test_a_run_that_begins_anew_has_none_of_another_one(begun, recorded, tmp_path):
    recorded(0)
    data = begun(0, recording=Recording(str(tmp_path / "answers"), write=True))
    taken(data, 2)
    assert of_engine(data, "generate") == ["generate 2"] * 2
    assert len(list((tmp_path / "answers").iterdir())) == 2


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.5}, {"seed": 2}, {"prompts_per_step": 4}, {"group_size": 3}, {"max_new_tokens": 32}]
)
def test_an_answer_to_another_question_is_none(begun, recorded, tmp_path, changes):
    recorded(0)
    own = going_on(begun, tmp_path / "answers", 1, **changes)
    own.next_batch()
    assert len(of_engine(own, "generate")) == 1
    recorded(0)
    data = begun(0, recording=Recording("unused", replay=str(tmp_path)), **changes)
    with pytest.raises(RunError, match=r"^rollout\.recording\.replay: step 1: .* answers other [a-z]+ "):
        data.next_batch()


@pytest.mark.parametrize(
    "spoil", [lambda raw: raw[:-5], lambda raw: b"{}", lambda raw: gzip.compress(b'{"a": 1}'), longer]
)
def test_a_broken_answer_is_asked_for_again_and_not_replayed(begun, recorded, tmp_path, spoil):
    recorded(0)
    (path,) = tmp_path.glob("answers/step-000001-*")
    path.write_bytes(spoil(path.read_bytes()))
    replayed = begun(0, recording=Recording("unused", replay=str(tmp_path)))
    with pytest.raises(RunError, match=r"step 2: .*step-000001-rollouts-\d+\.json\.gz (is not there|has a response)"):
        taken(replayed, 2)
    own = going_on(begun, tmp_path / "answers", 1)
    own.next_batch()
    assert of_engine(own, "generate") == ["generate 2"]
    assert row_of(path)["groups"]


def test_an_engine_that_dies_has_answered_nothing(begun, tmp_path):
    data = begun(1, recording=Recording(str(tmp_path), write=True))
    data.engine.failures[1] = EngineDiedError("it died")
    assert list(map(seeds, taken(data))) == list(map(seeds, taken(begun(1))))
    data.upcoming.settle()
    assert len(list(tmp_path.iterdir())) == STEPS


def test_bad_settings(tmp_path):
    with pytest.raises(SettingError, match=r"^rollout\.recording\.replay: there are no answers in .*answers"):
        Recording("unused", replay=str(tmp_path))
    Recording(str(tmp_path), write=True)


def test_what_would_be_written_over_is_refused(recorded, tmp_path):
    recorded(0)
    with pytest.raises(SettingError, match=r"^rollout\.recording\.write: "):
        Recording("unused", write=True, replay=str(tmp_path))


@pytest.mark.wide
def test_a_replayed_run_ends_with_the_same_bits_and_asks_no_engine(train, tmp_path):
    settings = ("steps=3", "baseline=gradient_weighted", "schedule=snr", "~callbacks.evaluation")
    assert train(*settings, "rollout.recording.write=true", folder="first").returncode == 0
    result = train(*settings, f"rollout.recording.replay={tmp_path / 'first'}", folder="second")
    assert result.returncode == 0, result.stderr
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))
    for step in range(1, 4):
        first, second = (read_rollouts(tmp_path / name / "rollouts", step) for name in ("first", "second"))
        assert first == second
    assert "time/sync" in read_curves(tmp_path / "first")
    assert "time/sync" not in read_curves(tmp_path / "second")


@pytest.mark.wide
def test_two_ranks_replay_their_own_and_one_alone_is_refused(train, tmp_path):
    settings = ("steps=3", "baseline=gradient_weighted", "~callbacks.evaluation")
    ranks = ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")
    assert train(*settings, *ranks, "rollout.recording.write=true", folder="first").returncode == 0
    replay = f"rollout.recording.replay={tmp_path / 'first'}"
    result = train(*settings, *ranks, replay, folder="second")
    assert result.returncode == 0, result.stderr
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))
    alone = train(*settings, replay, folder="third")
    assert alone.returncode == 2
    (line,) = alone.stderr.strip().splitlines()
    assert line.startswith("error: rollout.recording.replay: step 1: ")
    assert "answers other prompts" in line
