"""Whole runs through the real command line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from fnmatch import fnmatchcase

import pytest
import torch
import warm
from cases import wide
from conftest import ROOT, run_script, same, weights
from kept_responses import read_rollouts
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util.tensor_util import make_ndarray

from callbacks.tensorboard import HEADLINES, glance
from oblr.record.curves import read_curves
from oblr.record.tags import FIRST, GOVERNED, RATE, TAGS, meaning
from oblr.run.manifest import by_age

DEMO_STEPS, MEASURED = 10, 5  # and steps between measurements of all norms


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The first steps of ``make demo``: vLLM and everything."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    short = [f"steps={DEMO_STEPS}", f"callbacks.grad_stats.every={MEASURED}"]
    result = run_script("train.py", "experiment=pocket", *short, f"paths.output_dir={folder}")
    assert result.returncode == 0, result.stderr
    return folder, result


def test_the_demo_learns(demo):
    curves = read_curves(demo[0])
    accuracy, low, high = (curves[f"eval/sampled_{end}"][1] for end in ("accuracy", "low", "high"))
    assert 0.25 <= accuracy[0] <= 0.60
    assert accuracy[-1] > accuracy[0] + 0.10
    assert low[-1] > high[0]


def test_the_demo_shows_what_it_does(demo):
    folder, result = demo
    assert result.stderr == ""
    assert "summary" in result.stdout
    assert len(result.stdout.splitlines()) < 30 + DEMO_STEPS  # a line a step, and a screen
    assert (folder / "summary.png").stat().st_size > 20_000
    assert "warning" not in result.stdout
    every_step = """train/reward train/lr train/entropy train/live_groups rollout/logprob_gap_max rollout/length
        rollout/age rollout/ess
        gradnorm/mean gradnorm/cv_within_group gradnorm/correlation_with_length
        baseline/gradient_weighted baseline/opo baseline/cross_fitted
        snr/M1 snr/M2 snr/noise snr/noise_scale snr/plug_in snr/debiased snr/ema snr/factor_ema
        monitor/effective_sample_size monitor/entropy_share reward/timeouts reward/errors
        reward/unpaid
        time/sync time/rollout time/reward time/check time/update time/step throughput/tokens_per_second"""
    curves = read_curves(folder)
    for tag in every_step.split():
        assert curves[tag][0] == list(range(1, DEMO_STEPS + 1)), tag
    whole = curves["baseline/none"][0]  # where also groups of equal rewards are measured, or there are none
    assert set(range(1, DEMO_STEPS + 1, MEASURED)) <= set(whole)
    for name in ("shrinkage", "batch_mean", "prior_past", "prior_history"):
        assert curves[f"baseline/{name}"][0] == whole


def test_tensorboard_has_every_number_and_what_it_means(demo):
    """By its own reader: a description of each, charts that have lines, and a row of hyper-parameters."""
    curves = read_curves(demo[0])
    events = EventMultiplexer().AddRun(str(demo[0] / "tensorboard"), "run").Reload()
    shown = MultiplexerDataProvider(events, "").list_scalars(RequestContext(), experiment_id="", plugin_name="scalars")
    again = {glance(tag): tag for tag in HEADLINES if tag in curves}
    said = {tag: series.description for tag, series in shown["run"].items()}
    assert said.keys() == curves.keys() | again.keys()
    governed = json.loads((demo[0] / "run.json").read_text())["method"]["learning rate"]
    assert "‖ĝ‖" in governed
    for tag, text in said.items():
        own = again.get(tag, tag)
        assert text == (f"{meaning(own)} {governed}." if own == "train/lr" else meaning(own))
    of_others = {"eval/greedy_reward", "eval/sampled_reward", "eval/*_low", "eval/*_high", "eval/*"}
    patterns = {next(pattern for pattern in TAGS if fnmatchcase(tag, pattern)) for tag in curves}
    of_other_settings = {"monitor/lr_factor", "rollout/refilled", "time/ahead_rollout", "time/ahead_reward"}
    assert patterns == TAGS.keys() - of_others - of_other_settings
    for tag, (steps, values) in curves.items():
        written = events.Tensors("run", tag)
        assert [event.step for event in written] == steps
        assert [make_ndarray(event.tensor_proto) for event in written] == pytest.approx(values, rel=1e-6)
    tags = events.GetAccumulator("run").Tags()
    assert {"gradnorm/per_sample", "rollout/samples/text_summary"} < set(tags["tensors"])
    (config,) = events.Tensors("run", "custom_scalars__config__")
    layout = Layout.FromString(config.tensor_proto.string_val[0])
    charts = [chart for category in layout.category for chart in category.chart]
    assert f"{RATE}: {governed}" in [chart.title for chart in charts]
    assert {tag for chart in charts for tag in chart.multiline.tag} < curves.keys()
    for patterns in FIRST.values():
        assert all(any(re.fullmatch(pattern, tag) for tag in curves) for pattern in patterns)
    (held_out, _) = (chart.margin.series[0] for chart in charts if chart.HasField("margin"))
    assert held_out.upper == "eval/sampled_high"
    started = events.SummaryMetadata("run", "_hparams_/session_start_info").plugin_data.content
    parameters = HParamsPluginData.FromString(started).session_start_info.hparams
    assert parameters["baseline"].string_value == "with_prior"
    assert parameters["schedule"].string_value == "normalised"
    assert parameters[GOVERNED].string_value == governed
    assert parameters["eta0"].number_value == 0.08


def test_the_engine_has_the_policys_weights_at_every_step(demo):
    _, gaps = read_curves(demo[0])["rollout/logprob_gap_max"]
    assert max(gaps) <= 1e-3


def test_the_run_folder_says_what_the_run_was(demo):
    folder, _ = demo
    record = json.loads((folder / "run.json").read_text())
    assert record["seed"] == 1
    assert record["revision"] != "unknown"
    assert {"torch", "transformers", "lightning"} < record["versions"].keys()
    assert any(name.startswith("vllm") for name in record["versions"])
    assert f"output_dir: {folder}" in (folder / "config.yaml").read_text()
    assert [path.name for path in by_age(folder / "checkpoints")] == [f"step-{DEMO_STEPS:05d}.ckpt"]
    assert "vllm" in (folder / "train.log").read_text()


def test_the_exported_policy_loads_in_transformers_and_vllm(demo):
    from oblr.batch.packing import pack
    from oblr.batch.types import Rollout, Sampling
    from oblr.policy.loading import load_model, load_tokenizer
    from oblr.policy.model import PolicyModel
    from oblr.problem import Problem
    from oblr.rollout.vllm import VLLMEngine

    path = str(demo[0] / "policy")
    tokenizer, engine = load_tokenizer(path), VLLMEngine(path, "float32", 128)
    engine.start()
    engine.weight_version = 0  # the exported ones
    prompt = tokenizer.encode("1 + 2 + 3 =\n")
    (completions,) = engine.generate([prompt], Sampling(4, 1.0, 32, (tokenizer.eos_token_id,)), [0])
    engine.close()
    packed = pack([Rollout(Problem("", "", ""), prompt, c, "", 0.0) for c in completions])
    with torch.no_grad():
        logprobs = PolicyModel(load_model(path, "float32"), 1.0)(packed).logprobs
    assert (logprobs - packed.behaviour_logprobs).abs().max() < 1e-3


@pytest.mark.wide
@pytest.mark.parametrize(
    ("optimizer", "baseline", "adapter"), [("adamw", "value", "lora"), ("sgd", "gradient_weighted", "none")]
)
def test_a_resumed_run_ends_with_the_same_bits(train, tmp_path, optimizer, baseline, adapter):
    choices = (f"optimizer={optimizer}", f"baseline={baseline}", f"policy.adapter={adapter}")
    overrides = (*choices, "schedule=snr", "eta0=1e-3", "callbacks.checkpoints.every=1")
    assert train("steps=4", *overrides, folder="whole").returncode == 0
    assert train("steps=2", *overrides, folder="parts").returncode == 0
    second = weights(tmp_path / "parts")
    place = f"paths.output_dir={tmp_path / 'parts'}"
    resumed = run_script("train.py", "steps=4", "ckpt_path=last", place)
    assert resumed.returncode == 0, resumed.stderr
    assert [line for line in resumed.stdout.splitlines() if line.startswith("changed ")] == ["changed     steps: 2 → 4"]
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert not same(second, weights(tmp_path / "parts"))
    once, twice = ({path.name for path in (tmp_path / name).iterdir()} for name in ("whole", "parts"))
    assert once == {
        *("config.yaml", "run.json", "finished.json", "train.log", "metrics.jsonl", "report.html", "report.csv"),
        *("policy", "checkpoints", "tensorboard", "rollouts", ".lock"),
    }
    assert twice == once | {"config-2.yaml", "run-2.json"}
    whole, parts = (read_curves(tmp_path / name) for name in ("whole", "parts"))
    for tag in ("train/lr", "train/reward", "snr/ema", "gradnorm/mean"):
        assert whole[tag] == parts[tag], tag
    for step in range(1, 5):
        whole, parts = (read_rollouts(tmp_path / name / "rollouts", step) for name in ("whole", "parts"))
        assert whole == parts
        assert len(whole) == 32
    if adapter == "lora":
        other = run_script("train.py", "steps=6", "ckpt_path=last", "policy.lora.alpha=3", place)
        assert other.returncode == 2
        assert "ckpt_path" in other.stderr
        assert "policy.lora.alpha=64.0, not 3.0" in other.stderr


@pytest.mark.wide
@pytest.mark.parametrize("baseline", ["rloo", "gradient_weighted"])  # rloo: norms are measured by a callback
def test_without_callbacks_the_parameters_are_the_same_bits(train, tmp_path, baseline):
    assert train("steps=2", f"baseline={baseline}", folder="seen").returncode == 0
    names = "evaluation throughput grad_stats monitors snr samples rollouts progress graceful_stop"
    removed = [f"~callbacks.{name}" for name in names.split()]
    result = train("steps=2", f"baseline={baseline}", *removed, folder="alone")
    assert result.returncode == 0, result.stderr
    assert same(weights(tmp_path / "seen"), weights(tmp_path / "alone"))
    assert "gradnorm/mean" in read_curves(tmp_path / "seen")


TWO = ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")


@pytest.mark.parametrize(
    ("engine", "name", "ranks"),
    [
        ("hf", "ForgetfulHF", ()),
        *wide(
            ("hf", "ForgetfulRank", TWO),
            ("vllm", "ForgetfulVLLM", (*TWO, "rollout.engines.vllm.tensor_parallel_size=2")),
        ),
    ],
)
def test_a_skipped_sync_is_found_out(train, monkeypatch, engine, name, ranks):
    """After one step, too small to show in probabilities."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    small = ("schedule=constant", "schedule.lr=1e-5", "~callbacks.evaluation")
    target = f"rollout.engines.{engine}._target_=stale.{name}"
    result = train("steps=5", *small, f"rollout.engine={engine}", target, *ranks)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert "rollout engine is stale: after sync 2 it has other numbers than it was sent in model." in line


@pytest.mark.wide
def test_a_rank_whose_engine_computes_something_else_is_found_out(train, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    off = ("rollout.engines.hf._target_=stale.OffRank", "+rollout.engines.hf.off=0.005")
    result = train("steps=2", *TWO, *off, "~callbacks.evaluation")
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert re.search(r"stale: after sync 1 .*mean .* 0\.005 nats, more than policy\.logprob_gap_mean=0\.001", line)


@pytest.mark.wide
def test_ctrl_c_saves_and_the_run_can_go_on(tmp_path):
    folder = tmp_path / "run"
    command = [
        *(sys.executable, "src/train.py", "experiment=pocket", "rollout.engine=vllm", "steps=500"),
        *(
            "rollout.prompts_per_step=4",
            "data.held_out.size=8",
            f"paths.output_dir={folder}",
            "callbacks.progress.every=1",
        ),
    ]
    process = warm.popen()(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in process.stdout:
        if "step 2/500" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    assert err == ""
    assert "go on with ckpt_path=last" in out
    *_, saved = by_age(folder / "checkpoints")
    done = torch.load(saved / "meta.pt", weights_only=True)["epoch"] + 1
    assert saved.name == f"step-{done:05d}.ckpt"
    assert 2 <= done < 500
    deadline = time.time() + 120
    while time.time() < deadline and subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).stdout:
        time.sleep(0.2)
    assert subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).stdout == b""
    resumed = run_script("train.py", *command[2:], f"steps={done + 1}", "ckpt_path=last")
    assert resumed.returncode == 0, resumed.stderr
    assert f"step {done + 1}/{done + 1}" in resumed.stdout


@pytest.mark.wide
def test_a_run_goes_on_with_another_number_of_ranks(train, tmp_path):
    two = ["trainer.accelerator=cpu", "trainer.devices=2"]
    parts = [["trainer=fsdp", *two], ["trainer=single"], ["trainer=ddp", *two]]
    for done, trainer in enumerate(parts, 1):
        resume = ["ckpt_path=last"] if done > 1 else []
        result = train(f"steps={done}", *trainer, *resume, "schedule=constant", "optimizer=adamw", "eta0=1e-3")
        assert result.returncode == 0, result.stderr
    curves = read_curves(tmp_path / "run")
    assert curves["train/lr"][0] == [1, 2, 3]
    assert max(curves["rollout/logprob_gap_max"][1]) < 1e-3
