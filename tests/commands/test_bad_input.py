"""Every kind of bad input: one line that names the setting, status 2, nothing lost.

All go the command line's own path in this process; some of them as a user types them.
"""

import json
import os
import re
import shutil

import pytest
import torch
from bad_files import BAD_FILES, KINDS
from conftest import POCKET, ROOT, run_script
from refusals import check
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from oblr.record.curves import read_curves
from oblr.run.checkpoint import save


@pytest.mark.parametrize(
    ("overrides", "setting", "words"),
    [
        (["baseline=best"], "", ["baseline/best"]),
        (["callbacks=null"], "callbacks", ["use some of benchmarks, default"]),
        (["trainer.accelerator=tpu"], "trainer.accelerator", ["cpu"]),
        (["+callbacks.evaluation.evry=3"], "callbacks.evaluation.evry", ["did you mean every?"]),
        (["rollout.grop_size=4"], "", ["grop_size"]),
        (["rollout.group_size=1"], "rollout.group_size", ["leave-one-out"]),
        (["schedule=normalised", "optimizer=adamw"], "schedule", ["AdamW with betas", "schedule=linear_clipped"]),
        (["schedule=normalised", "+optimizer.momentum=0.9"], "schedule", ["SGD with momentum 0.9", "plain"]),
        (["schedule=snr", "rollout.prompts_per_step=1"], "rollout.prompts_per_step", ["noise"]),
        (["rollout.top_p=0.9"], "rollout.top_p", ["samples from the whole distribution"]),
        (["+rollout.min_p=0.1"], "rollout.min_p", ["samples from the whole distribution", "src/eval.py"]),
        (["rollout.stop=['<|endoftext|>']"], "rollout.stop", ["a token that no text shows"]),
        (["rollout.stop=['']"], "rollout.stop", ["should not be empty"]),
        (["trainer=[nan]"], "trainer", ["there is no trainer/[nan] (use some of ddp, fsdp, single)"]),
        (["trainer=fsdp", "trainer.devices=3"], "rollout.prompts_per_step", ["4 prompts", "3 devices"]),
        *(
            (["trainer=fsdp", f"trainer.devices={ranks}", f"trainer.strategy.replicas={copies}"], *said)
            for ranks, copies, *said in (
                (4, 3, "trainer.strategy.replicas", ["4 ranks", "3 copies"]),
                (2, 2, "trainer.strategy.replicas", ["trainer=ddp"]),
            )
        ),
        (["trainer.devices=2"], "trainer.devices", ["one rank", "use trainer=ddp"]),
        (["trainer.num_nodes=2"], "trainer.devices", ["one rank"]),
        (["trainer=ddp", "trainer.devices=2", "trainer.strategy.replicas=2"], "trainer.strategy.replicas", []),
        (["rollout.refill=1", "baseline=none"], "rollout.refill", ["NoBaseline gives them one"]),
        (["rollout.refill=1", "kl=k3"], "rollout.refill", ["a KL penalty has one"]),
        (["rollout.max_new_tokens=125"], "rollout.max_model_len", ["exceeds 128"]),
        (["rollout.max_model_len=1000"], "rollout.max_model_len", ["context of 256"]),
        (["rollout.engine=sglang"], "rollout.engine", ["sglang"]),
        (
            ["rollout.engine=server", "rollout.engines.server.url=http://127.0.0.1:9"],
            "rollout.engines.server.url",
            ["no vLLM server answers"],
        ),
        (
            ["rollout.engine=vllm", "rollout.engines.vllm.tensor_parallel_size=3"],
            "rollout.engines.vllm.tensor_parallel_size",
            ["3 GPUs cannot share", "heads"],
        ),
        (["trainer.precision=bf16-mixed", "rollout.max_new_tokens=110"], "loss", ["110 tokens", "loss.ratio=token"]),
        (["trainer.precision=bf16-mixed", "loss=gspo"], "loss", ["clip further"]),
        (["schedule=snr", "schedule.estimator=best"], "schedule.estimator", ["best"]),
        (["policy.path=no/such/model"], "policy.path", ["no/such/model"]),
        (["policy.path=/proc"], "policy.path", ["not a model"]),
        (["policy.dtype=float12"], "policy.dtype", ["float12"]),
        (["ckpt_path=no/such.ckpt"], "ckpt_path", ["no/such.ckpt"]),
        (["ckpt_path=last"], "ckpt_path", ["no checkpoint"]),
        (["data=local", "data.held_out_path=x", "data.path=x", "data.order=easy_first"], "data.order", ["pass rates"]),
        (["data.train.params.min_terms=9"], "data.train.task", ["chain_sum"]),
        (["reward=python", "reward.path=no.such_reward"], "", ["reward", "no.such_reward"]),
        (["reward=python"], "", ["reward.path"]),
        (["requires.gpus=64"], "requires.gpus", ["64 GPUs"]),
        (["+requires.made.make=no/such/model"], "requires.made", ["no/such/model", "make it: make"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)
def test_settings(refused, tmp_path, overrides, setting, words):
    check(refused(*overrides), setting, *words)
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("override", "setting"),
    [("rollout.group_size=0", "rollout.group_size"), ("seed=abc", "seed"), ("rollout.grop_size=4", "")],
)
def test_a_bad_setting_is_said_before_torch_is_imported(train, monkeypatch, override, setting):
    """That takes seconds, which is long for a slip of the finger."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    result = train(override, cold=True)
    lines = result.stderr.splitlines()
    imported = {line.split("|")[-1].strip() for line in lines if line.startswith("import time:")}
    assert "hydra" in imported
    assert imported.isdisjoint({"torch", "lightning", "transformers", "vllm", "numpy"})
    result.stderr = "\n".join(line for line in lines if not line.startswith("import time:"))
    check(result, setting)


def test_a_server_that_vllm_could_not_start():
    server = "rollout.engines.server"
    shape = (f"{server}.gpus='0,1,2'", f"{server}.tensor_parallel_size=3")
    result = run_script("serve.py", "127.0.0.1", "1", "experiment=pocket", *shape)
    check(result, f"{server}.tensor_parallel_size", "3 GPUs cannot share", "heads")


ROW = json.dumps({"problem": "1 + 1", "answer": "2"})
LONG = json.dumps({"id": "long", "problem": "1 + " * 100, "answer": "2"})


@pytest.mark.parametrize(
    ("name", "content", "setting", "message"),
    [
        pytest.param(*file, id=kind, marks=() if number % 8 == 0 else pytest.mark.wide)
        for number, (file, kind) in enumerate(zip(BAD_FILES, KINDS, strict=True))
    ],
)
def test_dataset_files(refused, tmp_path, name, content, setting, message):
    """The line names file and row."""
    good, bad = tmp_path / "good.jsonl", tmp_path / name
    good.write_text(ROW + "\n")
    if content is not None:
        bad.write_bytes(content)
    result = refused("data=local", "reward=exact", f"data.path={bad}", f"data.held_out_path={good}")
    check(result, setting)
    assert re.search(message, result.stderr)


@pytest.mark.parametrize("path", ["extra.gold", "extra.answers.7", "extra.answers.-1", "extra.answer.text"])
def test_a_path_to_no_column(refused, tmp_path, path):
    row = {"problem": "1 + 1", "extra": {"answer": "2", "answers": ["2"]}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    result = refused(
        "data=local", "reward=exact", f"data.path={tmp_path / 'rows.jsonl'}", f"data.columns.answer={path}"
    )
    check(result, "data.columns", "rows.jsonl line 1 has no column", path)


@pytest.mark.parametrize("weight", ["0", ".nan"])
def test_weights_of_a_mixture(tmp_path, weight):
    given = ("experiment=pocket", "data=mixture", "reward=math", f"data.weights.math={weight}")
    check(run_script("train.py", *given, f"paths.output_dir={tmp_path / 'run'}"), "data.weights")


def test_a_prompt_that_is_longer_than_the_context(refused, tmp_path):
    good, long = tmp_path / "good.jsonl", tmp_path / "long.jsonl"
    good.write_text(ROW + "\n")
    long.write_text(f"{ROW}\n{LONG}\n")
    result = refused("data=local", "reward=exact", f"data.path={long}", f"data.held_out_path={good}")
    check(result, "rollout.max_model_len", "problem long", "exceeds 128")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raises raised KeyError"),
        ("infinite", "infinite gave inf"),
        ("raises_on_responses", "raised KeyError"),
        ("nan_on_responses", "gave nan"),
        ("unsendable", "cannot load it"),
        ("leaves", "leaves raised SystemExit(3)"),
        ("ends_its_process", "the process of ends_its_process ended with status 4"),
        ("interrupts", "interrupts raised KeyboardInterrupt"),
    ],
)
def test_broken_rewards(refused, name, said):
    check(refused("reward=python", f"reward.path=broken_rewards.{name}"), "reward", said)


def test_a_reward_whose_module_ends_the_program(refused, tmp_path, monkeypatch):
    (tmp_path / "no_guard.py").write_text("def reward(*_):\n    return 1.0\n\nexit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    check(refused("reward=python", "reward.path=no_guard.reward"), "", "no_guard", "sys.exit(0)")


ANSWERS = {
    "no answer can be equalled": ('{"x": 34}', "data.train", ["no response can be right by MathReward", "of problem"]),
    "prose": ("It follows by induction over the number of terms.", "data.train", ["of 3 problems"]),
}


@pytest.mark.parametrize(("answer", "setting", "words"), ANSWERS.values(), ids=ANSWERS)
def test_answers_that_can_never_be_paid(refused, tmp_path, answer, setting, words):
    rows = (json.dumps({"prompt": f"1 + {i}", "solution": answer}) for i in range(3))
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    (tmp_path / "test.jsonl").write_text(json.dumps({"prompt": "2 + 2", "solution": "4"}))
    check(
        refused("data=trl", "reward=math", *(f"data.{k}={tmp_path / v}.jsonl" for k, v in FILES.items())),
        setting,
        *words,
    )


FILES = {"path": "train", "held_out_path": "test"}


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        (["data.train.template=Add up."], "prompt"),
        (["data.train.template='{nothing}'"], "data.train.template"),
        (["data.train.template='{'"], "data.train.template"),
        (
            ["data.train.params={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}", "data.held_out.size=3000"],
            "data",
        ),
    ],
)
def test_questions_that_are_lost_or_all_held_out(refused, changes, setting):
    check(refused(*changes), setting)


@pytest.mark.wide
def test_rewards_that_break_in_training_cost_their_response_alone(train, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=os.pathsep)
    result = train(
        "reward=python",
        "reward.path=broken_rewards.fails_when_wrong",
        "rollout.reward_pool.timeout=0.3",
        "~callbacks.evaluation",
        "steps=2",
    )
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stdout.splitlines() if "is scored 0" in line]
    assert len(warnings) == 2  # the first of each kind
    assert "(timeout): no reward within 0.3 s" in "".join(warnings)
    assert "(error): fails_when_wrong raised KeyError('no such field')" in "".join(warnings)
    curves = read_curves(tmp_path / "run")
    timeouts, errors, rewards = (curves[name][1] for name in ("reward/timeouts", "reward/errors", "train/reward"))
    assert min(*timeouts, *errors) > 0
    assert [t + e for t, e in zip(timeouts, errors, strict=True)] == [32 * (1 - reward) for reward in rewards]


def test_tokenizer_without_end_of_text(refused, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(POCKET, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    check(refused(f"policy.path={folder}"), "policy.path", "end-of-text")


@pytest.mark.parametrize("kind", ["below a file", "read-only"])
def test_output_folder_that_cannot_be_written(refused, tmp_path, kind):
    if kind == "below a file":
        (tmp_path / "file").write_text("mine")
        folder = tmp_path / "file" / "run"
    else:
        folder = "/proc/run"
    check(refused(f"paths.output_dir={folder}"), "paths.output_dir", str(folder))
    if kind == "below a file":
        assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_holds_a_run_is_not_overwritten(refused, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("mine")
    check(refused(), "paths.output_dir", "already holds a run")
    assert os.listdir(folder) == ["run.json"]
    assert (folder / "run.json").read_text() == "mine"


@pytest.mark.parametrize("kind", ["garbage", "another policy's", "a wider policy's"])
def test_checkpoints_that_cannot_be_resumed(refused, tmp_path, kind):
    path, policy = tmp_path / "some.ckpt", torch.nn.Linear(3, 3)
    if kind == "a wider policy's":
        config = AutoConfig.from_pretrained(POCKET, intermediate_size=8)
        policy = torch.nn.ModuleDict({"scorer": torch.nn.ModuleDict({"lm": AutoModelForCausalLM.from_config(config)})})
    if kind == "garbage":
        path.write_bytes(b"not a checkpoint")
    else:
        save(path, policy, torch.optim.SGD(policy.parameters()), {})
    words = "not a complete checkpoint" if kind == "garbage" else "another architecture"
    check(refused(f"ckpt_path={path}"), "ckpt_path", str(path), words)
