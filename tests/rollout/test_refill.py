"""Prompts whose responses' rewards agree, and those that take their place in a step."""

# ruff: noqa: F811 (fixtures of other tests)

import random
from itertools import count
from statistics import fmean

import pytest
from apart import Apart
from cases import wide
from patient_reward import of_some, solvable
from test_ahead import STEPS, begun, parts, prompts, step, taken  # noqa: F401 (fixtures)
from test_datamodule import chain_sums

from oblr.errors import EngineDiedError, SettingError
from oblr.rollout.drawing import Drawn, Progress
from oblr.rollout.recording import Recording

#: More problems than a run draws.
MANY = chain_sums(400, seed=1)


class Beside(Apart):
    """An engine that computes in the policy's process."""

    apart = False


def expected(data, steps, refill, size=3):
    """Names of the prompts of each step, and how many were replaced, place by place."""
    stream, found = (data.train[i].id for i in count() if data.train[i].prompt not in data.drawing.held_out), []
    for _ in range(steps):
        places, replaced = [next(stream) for _ in range(size)], 0
        for _ in range(refill):
            for place, name in enumerate(places):
                if not solvable(name):
                    places[place], replaced = next(stream), replaced + 1
        found.append((places, replaced))
    return found


@pytest.mark.parametrize("refill", [1, 2, 50])
def test_others_take_their_places_in_the_order_of_the_source(begun, refill):
    data = begun(0, refill=refill, reward=of_some)
    batches = taken(data)
    assert [(prompts(batch), batch.refilled) for batch in batches] == expected(data, len(batches), refill)
    assert any(batch.agreeing for batch in batches) == (refill < 50)
    assert sum(batch.refilled for batch in batches) > 0
    for batch in batches:
        assert batch.agreeing == [q for q, name in enumerate(prompts(batch)) if not solvable(name)]
        assert all(rollout.reward == of_some(rollout.problem, "", rollout.completion) for rollout in batch.rollouts)


def test_a_prompt_has_seeds_of_its_own_in_a_step(begun):
    """One that is drawn later must not repeat what another was sampled with."""
    data, asked = begun(0, refill=50, reward=of_some), []
    generate = data.engine.generate

    def noted(given, sampling, own, done=None):
        asked.append(list(own))
        return generate(given, sampling, own, done)

    data.engine.generate = noted
    (batch,) = step(data)
    of_step = [seed for own in asked for seed in own]
    assert len(asked) > 1
    assert len({*of_step}) == len(of_step) == 3 + batch.refilled


def test_without_it_nothing_is_replaced_or_counted(begun):
    data = begun(0, reward=of_some)
    assert {batch.refilled for batch in taken(data)} == {None}
    assert data.progress == Progress(18)


def test_it_goes_on_where_a_checkpoint_left_it(begun):
    whole, first = begun(0, refill=2, reward=of_some), begun(0, refill=2, reward=of_some)
    every = [prompts(batch) for batch in taken(whole, 4)]
    taken(first, 2)
    again = begun(0, refill=2, reward=of_some)
    again.load_state_dict(first.state_dict())
    again.run.current_epoch = 2
    assert [prompts(batch) for batch in taken(again, 2)] == every[2:]


@pytest.mark.parametrize("counts", [[2, 0, 1], [0, 3], [4]])
def test_ranks_share_what_is_drawn_anew(begun, counts):
    """Each gets as many as it needs, all get the same problems as one would, and go on from the same place."""
    drawing = begun(0).drawing
    whole = drawing.shared(5, 7, [sum(counts)], 0, 3)
    shares = [drawing.shared(5, 7, counts, rank, 3) for rank in range(len(counts))]
    assert [problem for share in shares for problem in share.problems] == whole.problems
    assert {share.end for share in shares} == {whole.end}
    assert [share.first for share in shares] == [3 + sum(counts[:rank]) for rank in range(len(counts))]


@pytest.fixture
def whole(begun):
    """The problems of a run that none is held out of, in their order."""
    data = begun(0, train=MANY)
    return [data.train[i].id for i in range(400) if data.train[i].prompt not in data.drawing.held_out]


def check_trained(batches, whole):
    """Each problem of the first ones is trained on once, if its group does not agree."""
    trained = [name for batch in batches for name in prompts(batch)]
    assert len({*trained}) == len(trained)
    last = max(whole.index(name) for name in trained)
    assert {*trained} == {name for name in whole[: last + 1] if solvable(name)}


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("refill", [1, 2, 50])
def test_places_are_filled_where_rollouts_are_ahead(begun, whole, ahead, refill):
    data, drawn = begun(ahead, refill=refill, reward=of_some, train=MANY), []
    made = data.batch_of

    def noted(problems, *others):
        drawn.extend(problem.id for problem in problems.problems)
        return made(problems, *others)

    data.batch_of = noted
    batches = taken(data)
    assert sorted(drawn, key=whole.index) == whole[: len(drawn)]  # none is left out, and none drawn twice
    assert data.progress.beyond == ()
    assert [batch.age for batch in batches] == [min(t, ahead) for t in range(STEPS)]
    assert len(drawn) == sum(3 + batch.refilled for batch in batches)
    assert any(batch.agreeing for batch in batches) == (refill < 50)
    for batch in batches:
        assert batch.agreeing == [q for q, name in enumerate(prompts(batch)) if not solvable(name)]
    if refill == 50:
        check_trained(batches, whole)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_each_token_knows_its_weights_where_a_place_is_filled_later(begun, ahead):
    data = begun(ahead, refill=2, reward=of_some, train=MANY)
    for t, batch in enumerate(taken(data)):
        ages = []
        for rollout in batch.rollouts:
            own = rollout.completion
            (version, count), *others = own.versions or ((batch.weight_version, 3),)
            assert (version, count, others) == (own.token_ids[1], 3, [])
            ages.append(t + 1 - version)
        assert max(ages) <= batch.age <= ahead
        assert batch.token_age == (pytest.approx(fmean(ages)) if t else None)
        assert len({*ages}) > 1 or t == 0


@pytest.mark.parametrize("refill", [1, 2])
def test_what_fills_places_is_sampled_while_the_policy_trains(begun, refill):
    """Of a batch that is ahead for as many steps as it takes, nothing is left to be asked for when it is due."""
    data = begun(1 + refill, refill=refill, reward=of_some)
    taken(data, 2 + refill)
    before = len(data.engine.calls)
    batches = taken(data, STEPS - 2 - refill)
    asked = [own for call, own in data.engine.calls[before:] if call == "generate 2"]
    assert sum(batch.refilled for batch in batches) > 0
    assert asked
    assert not any(asked)  # in the thread that trains


@pytest.mark.parametrize("ahead", [1, 3, *wide(2)])
@pytest.mark.parametrize("done", [2, *wide(1, 3, 4)])
def test_a_run_that_goes_on_fills_places_with_problems_that_none_has_had(begun, whole, ahead, done):
    killed = begun(ahead, refill=50, reward=of_some, train=MANY)
    before, state = taken(killed, done), killed.state_dict()
    killed.teardown("fit")
    again = begun(ahead, refill=50, reward=of_some, train=MANY)
    again.load_state_dict(state)
    again.run.current_epoch = done
    check_trained([*before, *taken(again, STEPS - done)], whole)
    assert again.progress.beyond == ()
    assert bool(state["beyond"]) == (ahead > 1 and done > 1)


@pytest.mark.parametrize("ahead", [1, 3, *wide(2)])
@pytest.mark.parametrize("number", [5, *wide(2, 7, 9)])
def test_an_engine_that_dies_costs_no_problem(begun, whole, ahead, number):
    data = begun(ahead, refill=50, reward=of_some, train=MANY)
    data.engine.failures[number] = EngineDiedError("it died")
    check_trained(taken(data), whole)
    assert [call for call, _ in data.engine.calls].count("start") == 2


@pytest.mark.parametrize("ahead", [1, 2])
def test_problems_of_a_batch_that_was_too_old_come_again(begun, whole, ahead):
    data = begun(ahead, refill=50, reward=of_some, train=MANY)
    before = taken(data, 2)
    taken(data, 1)  # too old
    data.again = lambda: True
    (first,) = step(data)
    data.again = lambda: False
    check_trained([*before, first, *taken(data, 2)], whole)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_replay_has_the_others_too(begun, tmp_path, ahead):
    """With an engine in its own process: it is not asked."""
    settings = {"refill": 2, "reward": of_some, "train": MANY}
    data = begun(ahead, recording=Recording(str(tmp_path / "answers"), write=True), **settings)
    batches = taken(data)
    replay = Recording("unused", replay=str(tmp_path))
    data = begun(ahead, engines={"apart": Beside}, recording=replay, **settings)
    found = taken(data)
    assert [(one.rollouts, one.token_age) for one in found] == [(one.rollouts, one.token_age) for one in batches]
    assert "generate 2" not in [call for call, _ in data.engine.calls]


@pytest.mark.parametrize("seed", range(20))
def test_progress_is_the_set_of_what_was_drawn(seed):
    """Draws in any order, beside a set of positions."""
    chance, progress, drawn = random.Random(seed), Progress(), {*()}
    spans = [(begin, begin + chance.randint(1, 4)) for begin in range(0, 40, 4)]
    for begin, end in chance.sample(spans, 8):
        progress = progress.after(Drawn(0, [], 0, begin, end))
        drawn |= {*range(begin, end)}
        assert {place for place in range(50) if place in progress} == drawn
        assert progress.position == next(place for place in count() if place not in drawn)
        assert all(progress.position < begin < end for begin, end in progress.beyond)


def test_nothing_fills_places_while_weights_come_in_the_midst_of_responses(begun):
    with pytest.raises(SettingError, match=r"^rollout\.refill: .*rollout\.in_flight=false"):
        begun(2, refill=1, in_flight=True)
