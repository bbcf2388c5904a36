"""How long a step takes, worked out by hand on a processor of round numbers; and what no way of counting may change."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from oblr.plan.dry_run import Bytes
from oblr.plan.duration import Serving, Usual, duration, engine_pass, rollouts
from oblr.plan.roofline import Speed
from oblr.plan.update import Batch, Update, World
from oblr.plan.work import Op, Sync, Work

CONFIG = SimpleNamespace(
    num_hidden_layers=2,
    hidden_size=4,
    head_dim=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=8,
    vocab_size=10,
)
#: 500 operations and 50 bytes a second are within reach.
SPEED = Speed("made up", {"float32": 1000.0}, 100, 10, 5, products=0.5, streams=0.5, launch=0.25, kernel=0, sync=2)
FORWARD = Op("forward", "mm", "float32", 500, 8, 1)  # 1 s
BACKWARD = Op("backward", "add", "float32", 0, 100, 1)  # 2 s
STEP = Op("optimizer", "add", "float32", 0, 100, 1)
BETWEEN = Op("rest", "add", "float32", 0, 50, 1)  # 1 s
BATCH = Batch(groups=4, group_size=2, longest=10, response=6)
USUAL = Usual(prompt=3, response=5, live=0.5)  # two groups of two sequences of 8
RANKS = World(ranks=4)
SERVING = Serving(weights=25, kv_token=1, sequences=4)
SHARED = replace(SERVING, ranks=2, devices=2)
PARAMETERS = 50


def make(world=RANKS, work=None, token_budget=16, serving=SERVING, ahead=0, usual=USUAL, **moved):
    work = work or Work({FORWARD: 4, BACKWARD: 3}, {Sync("backward", "", "item"): 1})
    resident, moved = Bytes(weights=40), Bytes({"all-gather": 30, "all-reduce": 20} | moved)
    update = Update(Bytes(), resident, Bytes(), moved, Bytes(weights=50), work, Work({STEP: 2, BETWEEN: 1}))
    return duration(CONFIG, world, BATCH, usual, update, token_budget, serving, PARAMETERS, SPEED, 10, ahead)


def test_a_step_by_hand():
    found = make()
    assert found.phases == pytest.approx(
        {
            "prefill": 2 * 50 * 4 * 3 / 500,
            # ten passes of four sequences: 24 launches, longer than 47 bytes or 400 operations take, and 204 of its own
            "decode": 10 * (24 + 204) * 0.25,
            "sync": 50 / 10 + 4 * 25 / 50 + 45 * (11 * 2 + 3) * 0.25,
            "check": 4 * 64 / 16,  # 8 responses of 8 tokens; the forward pass of 16 takes 4 s
            # two micro-batches of 10 s and a wait of 2 s, longer than 7 s of travelling; 60 bytes in a ring; the rest
            "update": 2 * (10 + 2) + 60 / 10 + 1,
            "optimizer": 4,
        }
    )
    assert found.parts == {"forward": 8, "backward": 12}
    assert found.eager == pytest.approx(10 * (24 * 0.25 - 47 / 50))
    assert found.tokens == 4 * 2 * 5 * 4
    # weights of a block 2·4·(4 + 2) + 3·4·8; 16 tokens, of which 10 are scored; 36 pairs of a sequence
    one = 6 * (2 * 144 * 16 + 4 * 10 * 10) + 3 * 2 * 4 * 4 * 72
    assert found.mfu == pytest.approx(2 * one / 31 / 1000)
    assert found.step == pytest.approx(sum(found.phases.values()))
    assert found.hours == pytest.approx(found.step * 10 * 4 / 3600)


@pytest.mark.parametrize("sequences", [4, 2000])
def test_what_is_sampled_while_the_policy_trains_takes_as_long_as_the_longer_of_both(sequences):
    """In turn an engine of many at once is the shorter, and the one that takes longer than the update."""
    serving = replace(SERVING, sequences=sequences, weights=25 if sequences == 4 else 0.01)
    alone, beside = make(serving=serving), make(serving=serving, ahead=1)
    phases = beside.phases
    assert phases == alone.phases
    sampled, trained = phases["prefill"] + phases["decode"], phases["update"] + phases["optimizer"]
    assert beside.step == pytest.approx(phases["sync"] + phases["check"] + max(sampled, trained))
    assert beside.step == pytest.approx(alone.step - beside.at_once)


@pytest.mark.parametrize(("ahead", "beside"), [(1, 0), (2, 1), (3, 2), (4, 2)])
def test_places_are_filled_while_the_policy_trains_in_as_many_rounds_as_are_in_time(ahead, beside):
    """Of an update that takes longer than all of them."""
    usual = replace(USUAL, live=0.5, refill=2)
    found, inside = make(ahead=ahead, usual=usual, **{"all-gather": 1e5}), replace(usual, refill=beside)
    of_rounds = rollouts(CONFIG, BATCH, inside, SERVING, PARAMETERS, SPEED)
    assert found.at_once == pytest.approx(sum(of_rounds.values()))
    assert found.at_once < found.phases["update"]


def test_an_engine_with_devices_of_its_own():
    """It samples for all that share it, one after the other; its devices count for the whole run."""
    own, shared = (rollouts(CONFIG, BATCH, USUAL, one, PARAMETERS, SPEED) for one in (SERVING, SHARED))
    assert shared == pytest.approx({phase: 2 * seconds for phase, seconds in own.items()})
    found = make(serving=SHARED)
    assert (found.devices, found.hours) == (6, pytest.approx(found.step * 10 * 6 / 3600))


def test_what_travels_longer_than_is_computed_is_waited_for():
    """What is reduced over copies goes at another speed; where a policy is sharded no ring follows."""
    plain, sharded = (make(World(ranks=4, sharded=sharded), **{"all-gather": 100}) for sharded in (False, True))
    assert plain.phases["update"] == pytest.approx(2 * (100 / 10 + 20 / 5) + 6 + 1)
    assert sharded.phases["update"] == pytest.approx(2 * (100 / 10 + 20 / 5) + 1)


def test_a_pass_of_an_engine_that_launches_and_computes_in_turn():
    """It reads for 1 s, or computes for 2 s, and launches 24 kernels."""
    serial = Speed("", {"float32": 1000.0}, 100, products=0.5, streams=0.5, launch=0.25, serial=True)
    own = 0.25 * (180 + 6 * 3)
    assert engine_pass(CONFIG, SERVING, 500, serial, 3, 1, 25) == pytest.approx(2 + 6 + own)
    assert engine_pass(CONFIG, SERVING, 50, serial, 3, 1, 25) == pytest.approx(1 + 6 + own)
    replayed = Serving(25, 1, 4, graphs=True)
    assert engine_pass(CONFIG, replayed, 500, serial, 3, 1, 25) == pytest.approx(2 + 0.25 + own)
    assert engine_pass(CONFIG, replayed, 500, SPEED, 3, 1, 25) == pytest.approx(2 + own)


def test_groups_that_agree_are_sampled_again_one_round_after_the_other():
    """Half of four groups, then half of these: a round of few takes as many passes as a response has tokens."""
    usual = replace(USUAL, refill=2)
    assert usual.sampled == [1, 0.5, 0.25]
    assert usual.trained == 1 - 0.5**3
    assert usual.of(replace(BATCH, groups=8)).groups == 7
    found = rollouts(CONFIG, BATCH, usual, SERVING, PARAMETERS, SPEED)
    rounds = [rollouts(CONFIG, replace(BATCH, groups=n), USUAL, SERVING, PARAMETERS, SPEED) for n in (4, 2, 1)]
    assert found == pytest.approx({phase: sum(each[phase] for each in rounds) for phase in found})


@pytest.mark.parametrize("live", [1.0, 0.5])
def test_a_refill_where_no_group_agrees_costs_nothing(live):
    usual = Usual(3, 5, live)
    found, without = (
        rollouts(CONFIG, BATCH, each, SERVING, PARAMETERS, SPEED) for each in (replace(usual, refill=3), usual)
    )
    assert (found == without) == (live == 1)


@pytest.mark.parametrize("at_once", [0, 1, 8, 100])
def test_there_are_no_more_turns_than_sequences_and_no_fewer_than_one(at_once):
    decoding = rollouts(CONFIG, BATCH, USUAL, Serving(25, 1, at_once), PARAMETERS, SPEED)["decode"]
    sequences = min(max(at_once, 1), 8)
    one = engine_pass(CONFIG, SERVING, PARAMETERS, SPEED, sequences, sequences, sequences * 5.5)
    assert decoding == pytest.approx(5 * 8 / sequences * one)


@pytest.mark.parametrize("token_budget", [1, 5, 8, 12, 16, 20, 32])
def test_all_live_tokens_are_computed_once_however_they_are_cut(token_budget):
    """Where the work is that of its tokens, a second each."""
    live = USUAL.of(BATCH)
    lengths = next(iter(live.split(token_budget)), live.full(token_budget))
    found = make(work=Work({FORWARD: sum(lengths)}, {}), token_budget=token_budget)
    assert found.parts == pytest.approx({"forward": 2 * 2 * 8})


ops = some.builds(
    Op,
    *(some.sampled_from(names) for names in (["forward", "backward", "rest"], ["mm", "add"], ["float32", "bfloat16"])),
    *(some.integers(0, 100) for _ in range(3)),
)
works = some.builds(Work, some.dictionaries(ops, some.integers(1, 9), max_size=6), some.just({}))


@settings(max_examples=50, deadline=None)
@given(works, works, some.integers(1, 5))
def test_work_is_linear_and_each_of_it_in_one_phase(one, other, times):
    one, other = one * 1, other * 1
    for quantity in ("flops", "bytes", "launches"):
        a, b = one.total(quantity), other.total(quantity)
        assert (one + other).total(quantity) == a + b
        assert (one + other - other).ops == one.ops
        assert (one * times).total(quantity) == times * a
        assert sum(one.of(phase).total(quantity) for phase in one.phases) == a
    assert all({op.phase for op in one.of(phase).ops} == {phase} for phase in one.phases)
