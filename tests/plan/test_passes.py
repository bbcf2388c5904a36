"""Passes, checkpointing and token budget: what has room on a card, alike in a plan and in a run."""

from types import SimpleNamespace

import pytest
import torch
from cases import wide
from composing import composed
from conftest import adapt, tiny_model
from real_shapes import architecture
from taken_steps import make_batch, take_steps
from test_plan import policy

from oblr.commands.checks import check_machine
from oblr.commands.plan import draft, overrides_of
from oblr.errors import SettingError
from oblr.gradnorm import passes as room
from oblr.gradnorm.measure import GradNorms
from oblr.gradnorm.passes import BUDGETS, EITHER, GIB, MARGIN, Layout, Needs, choose, room_of, states_of
from oblr.plan.dry_run import DryRun
from oblr.plan.duration import Usual
from oblr.plan.memory import Device, Draft
from oblr.plan.pairs import pairs
from oblr.plan.roofline import GPUS, Speed
from oblr.plan.update import Batch, World, fake_model, plan_update
from oblr.policy.loading import checkpoint_blocks
from oblr.policy.settled import settle_here
from oblr.run.ranks import Ranks

#: GiB that cards stats: L40S and A40, whose memory corrects errors; A100 and H100; H200
L40S, H100, H200 = 44.5, 79.1, 139.7
SHAPE_4B = Batch(128, 8, 2048, 1024)


@pytest.fixture(scope="module")
def lm():
    """Qwen3-4B without numbers."""
    found = fake_model(DryRun(), architecture("4B"), "float32")
    checkpoint_blocks(found, 1)
    return found


def as_run(monkeypatch, lm, card, budget=8192, reserved=15.0, others=0.6):
    """What a run of Qwen3-4B chooses on a card, whose allocator holds ``reserved`` GiB and uses 15.

    Args:
        others: GiB that the card's own context and other processes have.
    """
    properties = SimpleNamespace(total_memory=int(card * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: int(15 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: int(reserved * GIB))
    free = int((card - reserved - others) * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, properties.total_memory))
    own = policy("auto", budget)
    own.scorer = SimpleNamespace(lm=lm)
    data = SimpleNamespace(max_model_len=SHAPE_4B.longest)
    own.trainer = SimpleNamespace(num_devices=1, strategy=None, precision="bf16-mixed", datamodule=data)
    own.__dict__["optimizers"] = lambda: torch.optim.SGD([torch.zeros(1)])
    own._device = torch.device("cuda", 0)
    settle_here(own, SHAPE_4B.group_size)
    return own.gradnorm.passes, own.token_budget


def as_planned(card, budget=8192):
    own = policy("auto", budget)
    world, usual = World(mixed=True, checkpointing=1), Usual(150, 300)
    Draft(own, architecture("4B"), world, SHAPE_4B, object(), Device(card * GIB), GPUS["h100"], usual, 1)
    return own.gradnorm.passes, own.token_budget


@pytest.mark.parametrize(
    ("card", "budget", "expected"),
    [
        (H100, 8192, ("one", 8192)),
        (L40S, 8192, ("two", 8192)),
        (H200, 8192, ("one", 8192)),
        (H100, 16_384, ("two", 16_384)),
        (H200, 16_384, ("one", 16_384)),
        (H100, "auto", ("one", 8192)),
        (H200, "auto", ("one", 16_384)),
    ],
)
def test_a_run_chooses_as_its_plan_whatever_the_allocator_holds(monkeypatch, lm, card, budget, expected):
    assert as_planned(card, budget) == expected
    for reserved in (15, 22, 28):  # as weights have been loaded, and after a self-check
        assert as_run(monkeypatch, lm, card, budget, reserved) == expected


def test_what_others_hold_of_the_card_is_seen_and_said(monkeypatch, lm, caplog):
    assert as_run(monkeypatch, lm, H100, others=10.0) == ("one", 8192)
    assert "alone on its devices" not in caplog.text
    assert as_run(monkeypatch, lm, H100, others=20.0) == ("two", 8192)
    assert "alone on its devices" in caplog.text


def test_all_ranks_choose_as_the_one_with_least_room(monkeypatch, lm):
    monkeypatch.setattr(Ranks, "least", lambda _, number: min(number, 0.0))
    assert as_run(monkeypatch, lm, H200) == ("two", 8192)


@pytest.mark.parametrize("experiment", ["oblr_qwen3_4b", *wide("oblr_qwen3_8b")])
def test_the_experiments_take_one_pass_within_nine_tenths_of_the_card(experiment):
    drafted = draft(composed(f"experiment={experiment}"), GPUS["h100"])
    assert drafted.policy.gradnorm.passes == "one"
    room = room_of(drafted.needs, drafted.device.memory)
    assert drafted.needs.of_tokens("one", drafted.policy.token_budget) <= room


@pytest.mark.parametrize(("passes", "every"), [("one", 1), ("two", 0), *wide(("one", 0), ("one", 2))])
def test_what_has_room_fits_in_a_dry_run(passes, every):
    """Two of Qwen3-4B's blocks, on a device that has just room; it is not much more than they need."""
    config, tokens = architecture("4B"), 4096
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    world = World(mixed=True, checkpointing=every)
    peak = plan_update(policy(passes, tokens), config, world, Batch(16, 4, 512, 500)).peak.total()
    lm = fake_model(DryRun(), config, "float32")
    checkpoint_blocks(lm, every)
    needs = Needs(lm, Layout(torch.bfloat16))
    needed = needs.lasting + needs.updating + needs.of_tokens(passes, tokens)
    assert 0.85 * needed < peak < needed / (1 - MARGIN)


def test_lasting_bytes_are_those_of_the_layout():
    lm, size = tiny_model(tied=True), sum(p.nbytes for p in tiny_model(tied=True).parameters())
    assert states_of(lambda parameters: torch.optim.AdamW(parameters)) == 2
    assert states_of(lambda parameters: torch.optim.SGD(parameters, lr=0.1)) == 0

    def needs(**layout):
        found = Needs(lm, Layout(torch.float32, **layout))
        return found.lasting, found.updating

    assert needs() == (size, size)
    assert needs(states=2.0) == (size, 3 * size)
    assert needs(bucketed=True, reference=True, context=7, beside=5.0) == (3 * size + 12, size)
    gathered = needs(shards=4)[1] - size / 4
    assert needs(shards=4, states=2.0) == (size / 4, 3 * size / 4 + gathered)
    assert needs(shards=4, offload=True) == (0, gathered)
    sizes = [m.weight.numel() for m in lm.modules() if isinstance(m, torch.nn.Linear)]
    rounded = 2 * (sum(sizes) + max(sizes))
    assert Needs(lm, Layout(torch.bfloat16)).updating == size + rounded
    adapt(lm)
    assert needs()[1] == sum(p.nbytes for p in lm.parameters() if p.requires_grad) < 0.5 * size  # adapters alone


def test_a_token_keeps_inputs_once_and_outputs_of_what_is_trained():
    lm = tiny_model(tied=False)
    block = (48 + 48 + 2 * 24) + 48 + 48 + (48 + 2 * 64) + 64 + 48  # q, k, v | o | gate, up | down
    assert Needs(lm, Layout(torch.float32)).of_tokens("one", 10) >= 10 * 4 * (2 * block + 48 + lm.vocab_size)
    checkpoint_blocks(lm, 1)
    needs = Needs(lm, Layout(torch.float32))
    assert needs.of_tokens("one", 10) == 10 * 4 * (2 * block + 48 + lm.vocab_size)
    assert needs.of_tokens("two", 10) == 10 * 4 * 2 * 48
    assert Needs(lm, Layout(torch.bfloat16)).of_tokens("two", 10) == 10 * 4 * 2 * 48  # what enters a block is float32


def test_the_better_pair_comes_first():
    lm = tiny_model(tied=True)
    checkpoint_blocks(lm, 1)
    needs = Needs(lm, Layout(torch.float32))
    for pair in [("one", 8192), ("one", 2048)]:
        assert choose(needs, EITHER, BUDGETS, needs.of_tokens(*pair)) == pair
    assert choose(needs, EITHER, (8192,), needs.of_tokens("two", 8192)) == ("two", 8192)
    assert choose(needs, ("two",), BUDGETS, needs.of_tokens("two", 4096)) == ("two", 4096)
    assert choose(needs, EITHER, BUDGETS, 0.0) == ("two", BUDGETS[-1])


def test_a_group_in_several_micro_batches_takes_a_gradient_of_its_own():
    lm = tiny_model(tied=True)
    whole, spread = (Needs(lm, Layout(torch.float32, largest=largest)) for largest in (100, 101))
    gradient = 4 * sum(p.numel() for p in lm.parameters())
    assert spread.of_tokens("two", 100) == whole.of_tokens("two", 100) + gradient
    assert spread.of_tokens("one", 101) == whole.of_tokens("one", 101)


def test_machine_memory_is_shared_by_the_processes_of_a_machine():
    one, four = (room.total_memory(torch.device("cpu"), n) for n in (1, 4))
    assert one == 4 * four > 0
    assert 0 < room.free_memory(torch.device("cpu")) <= one


@pytest.mark.parametrize(("named", "reported", "fits"), [(48, 44.4, True), (80, 79.1, True), (80, 44.5, False)])
def test_a_card_is_what_it_reports(monkeypatch, named, reported, fits):
    properties = SimpleNamespace(total_memory=int(reported * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("oblr.commands.checks.check_installed", lambda *_, **__: None)  # of a machine with a GPU
    if fits:
        check_machine(1, named, {}, vllm=False)
    else:
        with pytest.raises(SettingError, match=r"^requires\.gpu_memory_gib: "):
            check_machine(1, named, {}, vllm=False)


# --- every n-th block ------------------------------------------------------------------------------------------------


def test_training_recomputes_every_second_block(tmp_path):
    """The same numbers to float32's rounding, whichever blocks are computed again."""
    batch = make_batch(tmp_path, tied=True)
    plain, (expected,) = take_steps(tmp_path, batch, gradnorm=GradNorms())
    partial, (stats,) = take_steps(tmp_path, batch, gradnorm=GradNorms(), activation_checkpointing=2)
    blocks = [block.gradient_checkpointing for block in partial.scorer.lm.model.layers]
    assert blocks == [i % 2 == 0 for i in range(len(blocks))]
    torch.testing.assert_close(stats.square_norms, expected.square_norms, rtol=1e-6, atol=0, equal_nan=True)
    for name, gradient in plain.gradient.items():
        torch.testing.assert_close(partial.gradient[name], gradient, rtol=1e-5, atol=1e-6)


def test_a_model_that_has_no_blocks_to_choose_from_is_refused(monkeypatch):
    lm = tiny_model(tied=True)
    monkeypatch.setattr("oblr.policy.loading.GradientCheckpointingLayer", torch.nn.Bilinear)
    with pytest.raises(SettingError, match=r"^policy\.activation_checkpointing: "):
        checkpoint_blocks(lm, 2)
    lm.supports_gradient_checkpointing = False
    with pytest.raises(SettingError, match=r"^policy\.activation_checkpointing: "):
        checkpoint_blocks(lm, 1)


# --- plans of several settings --------------------------------------------------------------------------------------


@pytest.mark.wide
def test_pairs_are_reckoned_as_they_are_planned():
    """One plan tells what others would take, and those that have no room are not offered."""
    speed = Speed("", {"float32": 1e10}, 1e10, products=1, attention=1, streams=1, launch=1e-6, kernel=0, serial=True)
    small = ["rollout.prompts_per_step=16", "rollout.group_size=2", "policy.token_budget=512"]
    small += ["planned.prompt=64", "planned.response=64"]  # one plan then tells both memory and time

    def drafted(*overrides):
        return draft(composed("experiment=pocket", *small, "policy.activation_checkpointing=true", *overrides), speed)

    base = drafted()
    plan = base.plan()
    found = {(pair.passes, pair.every, pair.tokens): pair for pair in pairs(base, plan)}
    assert list(found.values()) == sorted(found.values(), key=lambda pair: pair.seconds)
    assert found["one", 1, 512].seconds == pytest.approx(plan.duration.step)
    without = drafted("policy.activation_checkpointing=false")
    assert found["one", 0, 512].seconds == pytest.approx(without.duration.step, rel=0.03)
    assert overrides_of(composed("experiment=pocket", "gradnorm.passes=two"), plan, found["one", 2, 256]) == {
        "policy.activation_checkpointing": 2,
        "policy.token_budget": 256,
        "gradnorm.passes": "one",
    }
    base.device = Device(base.needs.lasting + base.needs.updating)  # and nothing more
    assert pairs(base, plan) == []
