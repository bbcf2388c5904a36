"""Plans are those of the real shapes, the real step and the real engine: nothing is loaded, and nothing is guessed."""

import io
import os
from dataclasses import replace
from functools import partial

import pytest
import torch
import warm
from cases import wide
from composing import composed
from conftest import POCKET, ROOT, SHAPE, VOCAB, run_script, tiny_model
from real_shapes import SIZES, architecture, on_meta
from rich.console import Console
from test_roofline import totals
from torch.distributed.fsdp import FSDPModule
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3Config

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.packing import pack
from oblr.commands.plan import make
from oblr.errors import SettingError
from oblr.gradnorm.measure import GradNorms
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.plan import update
from oblr.plan.dry_run import Bytes, DryRun, fake_world
from oblr.plan.duration import Serving, Usual, rollouts
from oblr.plan.memory import Device, engine_memory
from oblr.plan.roofline import GPUS, Speed, between_nodes
from oblr.plan.tables import memory_table, speed_remarks, time_table, verdict
from oblr.plan.update import Batch, World, plan_update
from oblr.plan.work import Work
from oblr.policy.adapter import LoRA, adapters
from oblr.policy.model import PolicyModel
from oblr.policy.step import PolicyModule
from oblr.rollout.hf import HFEngine
from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine
from oblr.schedules.constant import ConstantSchedule


def policy(passes="two", token_budget=64, optimizer=torch.optim.SGD, baseline=GradientWeightedBaseline, lora=None):
    return PolicyModule(
        path="",
        dtype="float32",
        gradnorm=GradNorms("exact", passes),
        baseline=baseline(),
        loss=PolicyGradientLoss("none"),
        schedule=ConstantSchedule(0.1),
        optimizer=partial(optimizer, lr=0.1),
        temperature=1.0,
        token_budget=token_budget,
        logprob_gap_mean=1.0,
        logprob_gap_p99=1.0,
        adapter="none" if lora is None else "lora",
        lora=lora,
    )


@pytest.mark.parametrize("size", SIZES)
def test_the_real_shapes(size):
    parameters, tied = SIZES[size]
    weights = dict(on_meta(size).weights())
    assert sum(weight.numel() for weight in weights.values()) == parameters
    assert ("lm_head.weight" in weights) == (not tied)


def test_the_engine_takes_every_weight_by_name_and_shape(tmp_path):
    """vLLM's own class, on the meta device: it says which of its parameters it has been given."""
    script = """
import sys, torch
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from conftest import ROOT
from real_shapes import SIZES, on_meta

for size in SIZES:
    folder = ROOT / "conf" / "architecture" / "Qwen" / f"Qwen3-{size}-Base"
    config = EngineArgs(model=str(folder), skip_tokenizer_init=True, max_model_len=2048).create_engine_config()
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, "file://" + sys.argv[1], 0, "gloo")
            ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"):
            model = Qwen3ForCausalLM(vllm_config=config)
        given = model.load_weights(on_meta(size).weights())
    wanted = dict(model.named_parameters())
    assert given == wanted.keys(), given ^ wanted.keys()
    assert sum(p.numel() for p in wanted.values()) == SIZES[size][0]
print("all")
"""
    (tmp_path / "take.py").write_text(script)
    places = ROOT / "tests", ROOT / "tests" / "helpers", os.environ.get("PYTHONPATH", "")
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    result = warm.run([str(tmp_path / "take.py"), str(tmp_path / "group")], ROOT / "tests", paths, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "all"


@pytest.mark.parametrize(("size", "ranks"), [("4B", 8), *wide(("8B", 16))])
def test_shards_are_those_of_fsdp(size, ranks):
    """One unit a block and the root's; what the plan extrapolates from a few blocks is what all have."""
    config, world = architecture(size), World(ranks, sharded=True, mixed=True)
    adamw = policy(optimizer=torch.optim.AdamW, baseline=RLOOBaseline)
    planned = plan_update(adamw, config, world, Batch(1, 2, 32, 16))
    with fake_world(ranks) as mesh:
        model = on_meta(size)
        model.shard(mesh)
        assert sum(isinstance(module, FSDPModule) for module in model.modules()) == config.num_hidden_layers + 1
        shards = sum(p.to_local().nbytes for p in model.parameters())
        whole = sum(p.nbytes for p in model.parameters())
    assert whole / ranks <= shards < 1.001 * whole / ranks
    assert planned.resident["weights"] == planned.peak["gradients"] == shards
    assert planned.resident["gradients"] == 0  # they go with the step
    assert 0 <= planned.resident["optimizer state"] - 2 * shards < 4096  # and a step count a parameter
    in_bfloat16 = whole / 2 * (ranks - 1) / ranks
    assert planned.moved_by_sync == {"all-gather": pytest.approx(in_bfloat16, rel=1e-3)}


@pytest.mark.wide
def test_copies_hold_what_as_many_shards_hold_and_exchange_gradients_besides():
    shape = SHAPE | {"vocab_size": 512, "num_hidden_layers": 5}
    config, batch = Qwen3Config(**shape), Batch(1, 2, 32, 16)
    adamw = (policy(optimizer=torch.optim.AdamW, baseline=RLOOBaseline) for _ in range(2))
    worlds = World(8, sharded=True, mixed=True), World(16, sharded=True, replicas=2, mixed=True)
    one, two = (plan_update(each, config, world, batch) for each, world in zip(adamw, worlds, strict=True))
    assert two.resident == one.resident
    assert two.moved_by_sync == one.moved_by_sync
    assert two.moved - one.moved == {"all-reduce": pytest.approx(one.resident["weights"], rel=1e-3)}


@pytest.mark.parametrize(
    ("world", "depths", "passes", "lora"),
    [
        (World(mixed=True, gpu=False), [3, 4, 5], "one", None),
        *wide(
            (World(8, sharded=True, mixed=True, checkpointing=2), [7, 9, 11], "two", LoRA(4, 8.0, ["q_proj"], 0)),
            (World(8, sharded=True, mixed=True, checkpointing=1), [5, 6, 7], "two", LoRA(4, 8.0, ["q_proj"], 0)),
            (World(mixed=True, gpu=False, checkpointing=2), [6, 8, 10], "one", None),
            (World(mixed=True, checkpointing=3), [7, 10, 13], "one", None),
        ),
    ],
)
def test_a_few_blocks_tell_of_all(world, depths, passes, lora, monkeypatch):
    """Few, a block or a group of alike blocks more, and all, which an update with no blocks between its edges takes."""
    found, dry_run = [], update._dry_run

    def watched(policy, config, *given):
        found.append(config.num_hidden_layers)
        return dry_run(policy, config, *given)

    monkeypatch.setattr(update, "_dry_run", watched)
    config, batch = Qwen3Config(**SHAPE | {"num_hidden_layers": depths[-1]}), Batch(1, 2, 12, 6)
    few = plan_update(policy(passes, 24, lora=lora), config, world, batch)
    monkeypatch.setattr(update, "SHARDED_EDGES" if world.sharded else "EDGES", (depths[-1], depths[-1]))
    every = plan_update(policy(passes, 24, lora=lora), config, world, batch)
    assert found == depths
    assert summed(few) == summed(every)


@pytest.mark.wide
def test_what_is_frozen_has_neither_gradients_nor_moments():
    lora, config, batch = LoRA(4, 8.0, "all-linear", 0), tiny_model(tied=True).config, Batch(4, 2, 24, 12)
    lm = tiny_model(tied=True)
    weights = sum(p.nbytes for p in lm.parameters())
    lora.attach(lm)
    own = sum(p.nbytes for p in adapters(lm).values())
    planned, whole = (
        plan_update(policy(optimizer=torch.optim.AdamW, lora=chosen), config, World(2, gpu=False), batch)
        for chosen in (lora, None)
    )
    assert planned.resident["weights"] == whole.resident["weights"] == weights
    assert planned.trained == planned.resident["adapters"] == planned.peak["gradients"] == own
    assert 0 <= planned.resident["optimizer state"] - 2 * own < 4096
    assert planned.reduced(World(2)) == own
    assert whole.trained == weights
    flops = [found.work.of("weight gradients").total("flops") for found in (planned, whole)]
    assert 0 < flops[0] < 0.5 * flops[1]


def summed(planned):
    """With sums of the work by phase: an operation on one number of each block has its own size for each depth."""
    sums = [{phase: totals(work.of(phase)) for phase in work.phases} for work in (planned.work, planned.once)]
    return replace(planned, work=Work(syncs=planned.work.syncs), once=Work(syncs=planned.once.syncs)), sums


def test_a_dry_run_of_a_gpu_leaves_models_as_they_are():
    """Some of what stands for a GPU's kernels is put in place of functions of transformers, which all models share."""
    lm = tiny_model(tied=True)
    lm.eval()
    ids = torch.arange(12)[None] % VOCAB
    before = lm(input_ids=ids).logits
    plan_update(policy(), lm.config, World(), Batch(2, 2, 24, 12))
    assert torch.equal(lm(input_ids=ids).logits, before)


def test_what_is_written_into_has_the_shape_that_it_would_have():
    """Torch is asked once where it has that already, and every time where it takes another."""
    run, asked = DryRun(), []
    with run.fake:
        a, b = torch.ones(3, 4), torch.ones(4, 5)
        right, others = torch.empty(3, 5), [torch.empty(0), torch.empty(0)]
    dispatch = run.fake.dispatch
    run.fake.dispatch = lambda func, *given: asked.append(func) or dispatch(func, *given)
    with run:
        for _ in range(3):
            assert torch.mm(a, b, out=right) is right
        assert len(asked) == 1
        for other in others:
            assert torch.mm(a, b, out=other).shape == right.shape
    assert run.device.work.total("flops") == 5 * 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    ("passes", "checkpointing"), [("two", False), *wide(("one", False), ("one", True), ("two", True))]
)
def test_a_dry_run_takes_what_the_real_one_takes(passes, checkpointing):
    """The same program on numbers, as the allocator saw it."""
    shape, budget = {"vocab_size": 4096, "hidden_size": 64}, 512
    batch = Batch(4, 2, 128, 100)
    lm = tiny_model(tied=True, **shape)
    planned = plan_update(policy(passes, budget), lm.config, World(checkpointing=checkpointing, gpu=False), batch)
    if checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    real = policy(passes, budget)
    real.scorer = PolicyModel(lm, 1.0)
    for p in lm.parameters():
        p.grad = torch.zeros_like(p)
    lengths = batch.full(budget)
    packed = pack(batch.rollouts(lengths))
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        real.measure(real.gradnorm, [packed], batch.group_size) as measured,
    ):
        measured.backward(torch.ones(len(lengths), dtype=torch.float64))
    held = peak = sum(p.nbytes + p.grad.nbytes for p in lm.parameters())
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    assert planned.peak.total() == pytest.approx(peak, rel=0.05)


def test_limits_of_the_engine_leave_room_for_its_cache():
    def rollouts(**limits):
        engine = VLLMEngine("", "bfloat16", 2048, gpu_memory_utilization=0.4, **limits)
        return engine_memory(engine, architecture("8B"), SIZES["8B"][0], 2048, Device(80 * 2**30))[1]

    free, sequences = rollouts(), rollouts(max_num_seqs=128)
    both = rollouts(max_num_seqs=128, max_num_batched_tokens=4096)
    assert free["engine workspace"] == 1024 * 151_936 * 3 * 4
    assert sequences["engine workspace"] == 16_384 * 3 * 12_288 * 2
    assert both["engine workspace"] == 4096 * 3 * 12_288 * 2
    assert {live["engine workspace"] + live["KV cache"] for live in (free, sequences, both)} == {
        int(0.4 * 80 * 2**30) - 2 * SIZES["8B"][0]
    }


def test_a_tokens_cache_has_keys_and_values_of_every_layer():
    config, kv_token = architecture("8B"), 2 * 36 * 8 * 128 * 2
    vllm, hf = VLLMEngine("", "bfloat16", 2048), HFEngine("", "bfloat16", batch_size=32)
    assert engine_memory(vllm, config, SIZES["8B"][0], 2048, Device(80 * 2**30))[2] == kv_token
    _, rollouts, per_token = engine_memory(hf, config, SIZES["8B"][0], 2048, Device(80 * 2**30))
    assert per_token == kv_token
    assert rollouts["KV cache"] == 32 * 2048 * kv_token


def test_a_part_of_a_group_has_its_share_of_the_work():
    """Groups of two sequences, whole and cut in two."""
    config, batch = Qwen3Config(**SHAPE), Batch(2, 2, 24, 12)
    cut, whole = (
        plan_update(policy(token_budget=budget), config, World(gpu=False), batch).work.total("flops")
        for budget in (24, 48)
    )
    assert cut == pytest.approx(whole / 2, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "share"),
    [({}, 0.4), ({"gpu_memory_utilization": 0.3}, 0.3), ({"gpus": "4,5"}, 0)],
    ids=["the trainer's", "a share of the trainer's", "its own"],
)
def test_a_server_on_the_trainers_gpu_takes_its_share(settings, share):
    """In training too: it does not sleep."""
    engine = ServerEngine("", "bfloat16", 2048, "", **settings)
    training, rollouts, kv_token = engine_memory(engine, architecture("4B"), SIZES["4B"][0], 2048, Device(80 * 2**30))
    assert training.total() == rollouts.total() == int(share * 80 * 2**30)
    assert kv_token == 0


@pytest.mark.wide
def test_the_command_line(tmp_path):
    """An experiment fits where it is written for, and nothing is written."""
    small = ["policy.token_budget=4096", "rollout.group_size=2", "rollout.prompts_per_step=16"]
    longest = ["planned.prompt=1024", "planned.response=1024"]  # one plan then tells both memory and time
    sixteen = ["experiment=oblr_qwen3_8b", "trainer.num_nodes=2", *small, *longest]
    result = run_script("train.py", *sixteen, f"paths.runs={tmp_path}", "plan=true")
    assert result.returncode == 0, result.stdout + result.stderr
    words = ("weights", "gradients", "activations", "logits", "KV cache", "training", "rollouts", "fits: ")
    times = ("predicted, on H100", "decode", "update", "optimizer", "tokens a second", "GPU-hours for 200 steps", "MFU")
    for word in (*words, *times):
        assert word in result.stdout
    assert "16 ranks" in result.stdout
    assert "all-gather" in result.stdout
    assert not list(tmp_path.iterdir())


def test_decoding_reads_all_weights_for_every_token_of_the_batch():
    """… unless products, or launches, take longer."""
    config, speed = architecture("4B"), replace(GPUS["h100"], launch=0.0)
    batch, usual = Batch(8, 8, 1024, 1024), Usual(512, 512)
    memory = speed.bandwidth * speed.streams

    def times(sequences, kv_token=0.0, speed=speed, graphs=False):
        return rollouts(config, batch, usual, Serving(8e9, kv_token, sequences, graphs), 4 * 10**9, speed)

    def decode(*given, **settings):
        return times(*given, **settings)["decode"]

    # a prompt is read once for its eight responses
    assert times(64)["prefill"] == pytest.approx(2 * 4e9 * 8 * 512 / (speed.peak * speed.products))

    assert decode(64) == pytest.approx(512 * 8e9 / memory)
    assert decode(16) == pytest.approx(4 * 512 * 8e9 / memory)  # in four turns
    assert decode(1000) == decode(64)  # there are no more
    assert decode(64, 1e5) == pytest.approx(512 * (8e9 + 64 * 768 * 1e5) / memory)
    behind = replace(speed, launch=1e-4)
    assert decode(64, speed=behind) - decode(64, speed=behind, graphs=True) > 512 * (36 * 12 * 1e-4 - 8e9 / memory) / 2


@pytest.fixture(scope="module")
def shallow(tmp_path_factory):
    """The pocket experiment with a policy of one block."""
    folder = tmp_path_factory.mktemp("shallow")
    Qwen3Config.from_pretrained(POCKET, num_hidden_layers=1, layer_types=["full_attention"]).save_pretrained(folder)
    return ["experiment=pocket", f"policy.path={folder}"]


@pytest.mark.wide
def test_a_step_takes_as_long_as_its_phases_and_its_live_groups(shallow):
    """The real plan of the pocket experiment, smaller, on a processor that is made up."""
    speed = Speed("", {"float32": 1e10}, 1e10, products=1, attention=1, streams=1, launch=1e-5, kernel=0, serial=True)
    small = ["rollout.prompts_per_step=16", "rollout.group_size=2", "policy.token_budget=512"]
    whole, half, longer = (
        make(composed(*shallow, *small, *overrides), speed).duration
        for overrides in (["planned.live=1"], ["planned.live=0.5"], ["planned.live=1", "planned.response=48"])
    )
    assert whole.step == pytest.approx(sum(whole.phases.values()))
    assert whole.hours == pytest.approx(whole.step * 100 / 3600)
    assert half.phases["decode"] == whole.phases["decode"]
    assert 0.4 < half.phases["update"] / whole.phases["update"] < 0.8
    assert longer.phases["decode"] == pytest.approx(2 * whole.phases["decode"], rel=0.1)
    assert longer.phases["update"] > 1.1 * whole.phases["update"]
    assert longer.tokens == 2 * whole.tokens == 2 * 32 * 24


TWO = ["trainer=ddp", "trainer.devices=2", "rollout.prompts_per_step=2", "gradnorm=length"]
RATED = Speed("", {"float32": 1e10}, 1e10, launch=1e-5)


@pytest.fixture(scope="module")
def plan_of_two(shallow):
    return make(composed(*shallow, *TWO), RATED)


def test_gradients_that_are_summed_travel(plan_of_two, shallow):
    """Of two ranks in a ring each receives as many bytes as there are weights."""
    plans = [plan_of_two, make(composed(*shallow, *TWO), replace(RATED, link=1e5))]
    slow, at_once = (plan.duration.phases["update"] for plan in reversed(plans))
    assert plans[0].moved["all-reduce"] == plans[0].update.resident["weights"] > 0
    assert slow - at_once == pytest.approx(plans[0].moved["all-reduce"] / 1e5)


def test_sums_over_ranks_and_buckets(plan_of_two):
    plan = plan_of_two
    weights = plan.update.resident["weights"]
    assert plan.device.bucketed
    assert plan.training["gradients"] == plan.update.peak["gradients"] + weights
    assert plan.rollouts["gradients"] == weights
    assert plan.batch.groups == 1
    assert plan.micro_batches == 1  # not full
    assert replace(plan, token_budget=8 * 128 - 1).micro_batches == 2
    assert plan.duration.tokens == 2 * 8 * 24
    assert plan.duration.hours == pytest.approx(2 * 100 * plan.duration.step / 3600)


SERVED = ["rollout.engine=server", "rollout.ahead=1"]


@pytest.mark.wide
def test_a_server_with_gpus_of_its_own_samples_meanwhile(shallow):
    """As many copies as it has GPUs share the prompts of two ranks, and the GPUs count; alone, nothing is saved."""
    alone = make(composed(*shallow, *TWO, *SERVED[:1]), RATED).duration
    assert (alone.at_once, alone.devices) == (0, 2)
    for gpus, copies in (("1", 1), ("4,5,6,7", 4)):
        found = make(composed(*shallow, *TWO, *SERVED, f"rollout.engines.server.gpus='{gpus}'"), RATED).duration
        assert found.devices == 2 + copies
        assert found.phases["prefill"] == pytest.approx(alone.phases["prefill"] * 2 / copies)
        trained = found.phases["update"] + found.phases["optimizer"]
        sampled = found.phases["prefill"] + found.phases["decode"]
        assert found.at_once == pytest.approx(min(trained, sampled))


def test_the_table_of_time_says_what_is_sampled_meanwhile(shallow):
    plan = make(composed(*shallow, *TWO, *SERVED, "rollout.engines.server.gpus='1'"), RATED)
    console = Console(width=100, file=io.StringIO())
    console.print(time_table(plan))
    (line,) = (line for line in console.file.getvalue().splitlines() if "while the policy trains" in line)
    assert float(line.split()[-2].replace("−", "-")) == pytest.approx(-plan.duration.at_once, rel=0.01)


@pytest.mark.parametrize(
    ("refill", "live", "lines"),
    [
        (0, 0.5, []),
        (
            2,
            0.5,
            ["rollout.refill=2: 1.75 times the prompts of a step are sampled, and 88 % of the groups are live then"],
        ),
        (
            2,
            1.0,
            ["rollout.refill=2: no refill is counted, as all groups are taken for live (planned.live)"],
        ),
    ],
)
def test_a_line_says_what_refills_come_to(plan_of_two, refill, live, lines):
    said = speed_remarks(plan_of_two, Usual(9, 24, live, refill))
    assert [line for line in said if "refill" in line] == lines


def test_the_verdict_names_what_needs_most(plan_of_two):
    sizes = {"training": Bytes(weights=2**30), "rollouts": Bytes(weights=2**29)}
    for column, other in (("training", "rollouts"), ("rollouts", "training")):
        columns = {column: sizes["training"], other: sizes["rollouts"]}
        plan = replace(plan_of_two, kv_token=0, **columns)
        assert verdict(replace(plan, device=Device(2 * 2**30))) == "fits: 1 of 2 GiB"
        assert verdict(replace(plan, device=Device(2**29))) == f"does not fit: in {column} 1 of 0.5 GiB"


def test_the_table_is_in_gib(plan_of_two):
    plan = replace(plan_of_two, training=Bytes(weights=3 * 2**30), rollouts=Bytes(weights=2**29))
    console = Console(width=100, file=io.StringIO())
    console.print(memory_table(plan, "a run"))
    (weights,) = (line for line in console.file.getvalue().splitlines() if "weights" in line)
    assert weights.split()[-5:] == ["│", "3.00", "│", "0.50", "│"]


def test_between_nodes_less_travels_a_second():
    speed = GPUS["h100"]
    assert between_nodes(speed, 1) == speed
    assert 0 < between_nodes(speed, 2).link < speed.link


def test_an_engine_without_room_for_a_sequence_is_starved(plan_of_two):
    enough = plan_of_two.kv_token * plan_of_two.batch.longest
    assert replace(plan_of_two, rollouts=Bytes({"KV cache": 3 * enough})).kv_sequences == 3
    for cache, starved in ((enough, False), (enough - 1, True)):
        plan = replace(plan_of_two, rollouts=Bytes({"KV cache": cache}))
        assert plan.starved == starved
        assert (plan.lacking > 0) == starved


@pytest.mark.parametrize("setting", ["planned.gpu=a6000", "planned.live=0", "planned.response=4096"])
def test_time_is_planned_with_what_there_is(setting):
    command = ["experiment=oblr_qwen3_4b", "trainer.precision=32-true", setting]
    with pytest.raises(SettingError, match=r"planned\."):
        make(composed(*command))


@pytest.mark.wide
def test_advice_is_right():
    """Too small a GPU: one line, status 2, and what it advises makes it fit."""
    batch = ["policy.token_budget=4096", "rollout.group_size=16", "rollout.prompts_per_step=2"]
    longest = ["planned.prompt=64", "planned.response=64"]
    command = ["experiment=pocket", "baseline=rloo", *batch, *longest, "requires.gpu_memory_gib=1.6"]
    poor = run_script("train.py", *command, "plan=true")
    assert poor.returncode == 2
    (line,) = poor.stderr.splitlines()
    assert line.startswith("error: requires.gpu_memory_gib: does not fit: ")
    advice = line.split("it fits with ")[1].partition(")")[0].split()
    assert {override.split("=")[0] for override in advice} == {
        "policy.activation_checkpointing",  # in training
        "rollout.engines.vllm.gpu_memory_utilization",  # in rollouts
    }
    assert make(composed(*command, *advice)).lacking == 0
