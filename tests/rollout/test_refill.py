"""Prompts whose responses' rewards agree, and those that take their place in a step."""

from itertools import count

import pytest
from patient_reward import of_some, solvable
from test_ahead import begun, parts, prompts, seeds, step, taken  # noqa: F401 (fixtures)

from oblr.errors import SettingError


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
def test_others_take_their_places_in_the_order_of_the_source(begun, refill):  # noqa: F811
    data = begun(0, refill=refill, reward=of_some)
    batches = taken(data)
    assert [(prompts(batch), batch.refilled) for batch in batches] == expected(data, len(batches), refill)
    assert any(batch.agreeing for batch in batches) == (refill < 50)
    assert sum(batch.refilled for batch in batches) > 0
    for batch in batches:
        assert batch.agreeing == [q for q, name in enumerate(prompts(batch)) if not solvable(name)]
        assert all(rollout.reward == of_some(rollout.problem, "", rollout.completion) for rollout in batch.rollouts)


def test_a_prompt_has_seeds_of_its_own_in_a_step(begun):  # noqa: F811
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


def test_without_it_nothing_is_replaced_or_counted(begun):  # noqa: F811
    data = begun(0, reward=of_some)
    assert {batch.refilled for batch in taken(data)} == {None}
    assert data.position == 18


def test_it_goes_on_where_a_checkpoint_left_it(begun):  # noqa: F811
    whole, first = begun(0, refill=2, reward=of_some), begun(0, refill=2, reward=of_some)
    every = [prompts(batch) for batch in taken(whole, 4)]
    taken(first, 2)
    again = begun(0, refill=2, reward=of_some)
    again.load_state_dict(first.state_dict())
    again.run.current_epoch = 2
    assert [prompts(batch) for batch in taken(again, 2)] == every[2:]


@pytest.mark.parametrize("counts", [[2, 0, 1], [0, 3], [4]])
def test_ranks_share_what_is_drawn_anew(begun, counts):  # noqa: F811
    """Each gets as many as it needs, all get the same problems as one would, and go on from the same place."""
    drawing = begun(0).drawing
    whole = drawing.shared(5, 7, [sum(counts)], 0, 3)
    shares = [drawing.shared(5, 7, counts, rank, 3) for rank in range(len(counts))]
    assert [problem for share in shares for problem in share.problems] == whole.problems
    assert {share.end for share in shares} == {whole.end}
    assert [share.first for share in shares] == [3 + sum(counts[:rank]) for rank in range(len(counts))]


def test_prompts_drawn_ahead_cannot_be_replaced(begun):  # noqa: F811
    with pytest.raises(SettingError, match=r"rollout\.refill: .*rollout\.ahead=0"):
        begun(1, refill=1)
