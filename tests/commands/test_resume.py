"""A run that goes on: its own configuration with what is typed on top, and what its checkpoint cannot follow."""

import shutil

import pytest
import torch
from cases import wide
from conftest import POCKET
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from torch import nn

from oblr.commands.checks import check_followed, find_checkpoint, trained
from oblr.commands.compose import composer, job_config
from oblr.commands.resume import locates, resumed, resuming, where_it_was
from oblr.commands.train import make_policy
from oblr.commands.written import as_told, written
from oblr.data.ends import end_tokens
from oblr.errors import SettingError
from oblr.policy.loading import identity, load_config, load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.run.checkpoint import meta, save
from oblr.run.resumed import completed, unlike, with_changes

OWN = (
    "experiment=pocket",
    "rollout.engine=hf",
    "baseline.prior=history",
    "schedule=noise_linear",
    "optimizer=adamw",
    "loss.ratio=token",
    "eta0=0.01",
)
WATCHED = "callbacks.second_moments.baselines.another"
LIGHT = ("experiment=pocket", "baseline=rloo", "schedule=constant", "eta0=0.02", "~callbacks.summary")


@pytest.fixture
def hydra():
    with composer() as compose:
        yield compose


def made(cfg):
    path = cfg.policy.path
    config, tokenizer = load_config(path), load_tokenizer(path)
    policy = make_policy(cfg, identity(config, tokenizer, end_tokens(path, tokenizer)), as_told(cfg), written(cfg))
    return policy, config


def begin(hydra, folder, *overrides, change=lambda kept: None):
    """A checkpoint as a run of these overrides writes it after its first step."""
    policy, _ = made(job_config(hydra("train", [*overrides, f"paths.output_dir={folder}"], RunMode.RUN)))
    weights = nn.ModuleDict({"scorer": PolicyModel(load_model(policy.path, "float32"), 1.0)})
    states = {"schedule": policy.schedule.state_dict(), "baseline": policy.baseline.state_dict()}
    kept = {"base": policy.base, "run": policy.run, **states}
    change(kept["run"])
    (folder / "checkpoints").mkdir(parents=True)
    checkpoint = folder / "checkpoints" / "step-00001.ckpt"
    save(checkpoint, weights, torch.optim.SGD(weights.parameters()), {"oblr": kept, "callbacks": {"SecondMoments": {}}})
    return checkpoint


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Folders of two runs, of which one has parts that remember something."""
    folders = {own: tmp_path_factory.mktemp("begun") / "run" for own in (OWN, LIGHT)}
    with composer() as compose:
        for own, folder in folders.items():
            begin(compose, folder, *own)
    return folders


def go_on(folder, *typed):
    """The configuration that a command line leads to, and what differs from the run's own."""
    command = resuming([f"paths.output_dir={folder}", "ckpt_path=last", *typed])
    assert [own for own in command if locates(own)][:2] == command[:2]
    found = OmegaConf.create({"ckpt_path": "last", "paths": {"output_dir": str(folder)}})  # as composed of these two
    cfg = resumed(found, command)
    policy, config = made(cfg)
    checkpoint = find_checkpoint(cfg.ckpt_path, folder, trained(config, policy.lora), policy.base)
    return cfg, {path: (a, b) for path, a, b in check_followed(checkpoint, policy, where_it_was(cfg, checkpoint))}


@pytest.mark.parametrize("typed", [(), OWN], ids=["nothing", "all of it"])
def test_a_run_goes_on_as_itself(begun, hydra, typed):
    folder = begun[OWN]
    checkpoint = folder / "checkpoints" / "step-00001.ckpt"
    cfg, differing = go_on(folder, *typed)
    kept = meta(checkpoint)["oblr"]["run"]
    assert differing == {}
    assert cfg.ckpt_path == str(checkpoint)
    assert cfg.paths.output_dir == str(folder)
    assert where_it_was(cfg, checkpoint) == kept["config"] | {"ckpt_path": str(checkpoint)}
    assert set(OWN) < set(HydraConfig.get().overrides.task)


@pytest.mark.parametrize(
    ("own", "typed", "expected"),
    [
        (OWN, ["eta0=0.5", "seed=7", "baseline.decay=0.5"], {"eta0", "seed", "baseline.decay"}),
        (OWN, ["~callbacks.monitors.entropy", "reward=exact", "kl=k3"], {"callbacks.monitors.entropy", "reward", "kl"}),
        (OWN, [f"+{WATCHED}=" + "{_target_: oblr.baselines.rloo.RLOOBaseline}"], {WATCHED}),  # it begins anew
        *wide(
            (OWN, ["loss=gspo"], {"loss"}),  # the ratio that the run had been told goes with its loss
            (LIGHT, ["schedule.lr=0.5"], {"schedule.lr"}),  # which the default schedule does not have
            (LIGHT, ["schedule=linear", "baseline=otb"], {"schedule", "baseline"}),  # neither remembers anything
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_typed_is_followed_and_said(begun, hydra, own, typed, expected):
    cfg, differing = go_on(begun[own], *typed)
    assert differing.keys() == expected
    if "eta0" in expected:
        assert differing["eta0"] == (0.01, 0.5)
        assert cfg.policy.schedule.schedule.eta0 == 0.5
    if "loss" in expected:
        assert "ratio" not in cfg.loss


@pytest.mark.parametrize(
    ("own", "typed", "named"),
    [
        (OWN, ["baseline=rloo"], "baseline=GradientWeightedBaseline, not RLOOBaseline"),
        (OWN, ["baseline.prior=past"], "baseline.prior=history, not past"),
        (OWN, ["data=gsm8k"], "data.train="),
        (LIGHT, ["schedule=snr"], "schedule=ConstantSchedule, not SNRSchedule"),
        *wide(
            (OWN, ["optimizer=sgd"], "optimizer=AdamW, not SGD"),
            (OWN, ["+optimizer.amsgrad=true"], "optimizer.amsgrad=absent, not True"),
            (OWN, ["policy.dtype=bfloat16"], "policy.dtype=float32, not bfloat16"),
            (OWN, ["policy.adapter=lora"], "policy.adapter=none, not lora"),
            (OWN, ["callbacks.second_moments.baselines.prior_past.prior=history"], "baselines.prior_past.prior=past"),
        ),
    ],
    ids=str,
)
def test_what_a_checkpoint_cannot_follow_is_refused(begun, hydra, own, typed, named):
    with pytest.raises(SettingError, match=r"^ckpt_path: .*step-00001\.ckpt was made with ") as refused:
        go_on(begun[own], *typed)
    assert named in str(refused.value)


def test_steps_that_are_done_are_not_taken_back(begun, hydra):
    with pytest.raises(SettingError, match=r"^steps: .* has done 1 steps, more than 0"):
        go_on(begun[LIGHT], "steps=0")


def test_a_policy_is_the_same_in_another_folder_and_another_in_its_own_tokenizer(hydra, tmp_path):
    begin(hydra, tmp_path / "run", *LIGHT)
    begin(hydra, tmp_path / "penalised", *LIGHT, "kl=k1")
    copy, other, chat = (tmp_path / name for name in ("copy", "other", "chat"))
    for folder in (copy, other, chat):
        shutil.copytree(POCKET, folder)
    _, differing = go_on(tmp_path / "run", f"policy.path={copy}")
    assert differing == {"policy.path": (str(POCKET), str(copy))}
    (chat / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(SettingError, match=r"policy\.path's tokenizer="):
        go_on(tmp_path / "run", f"policy.path={chat}")
    lm = load_model(str(other), "float32")
    lm.model.norm.weight.data += 1
    lm.save_pretrained(other)
    for run, typed in (("penalised", ()), ("run", ("kl=k1",))):  # the reference would be another
        with pytest.raises(SettingError, match=r"was made with (weights|policy\.path)="):
            go_on(tmp_path / run, f"policy.path={other}", *typed)
    go_on(tmp_path / "run", f"policy.path={other}")  # its weights are the checkpoint's


def drift(run):
    """As if the configuration files had been others when the run began."""
    for config in (run["told"], run["config"]):
        config["policy"]["token_budget"] = 512
        config["schedule"] = {"_target_": "oblr.schedules.constant.ConstantSchedule", "lr": 0.5}
        del config["rollout"]["restarts"], config["requires"]


def test_a_run_keeps_what_the_configuration_files_said_when_it_began(hydra, tmp_path):
    begin(hydra, tmp_path, *OWN, change=drift)
    cfg, differing = go_on(tmp_path, "eta0=0.5")
    assert (cfg.policy.token_budget, cfg.policy.schedule.lr, cfg.rollout.restarts) == (512, 0.5, 3)
    assert cfg.schedule._target_.endswith("ConstantSchedule")
    assert differing.keys() == {"eta0", "rollout.restarts", "requires"}
    cfg, differing = go_on(tmp_path, "policy.token_budget=256")
    assert cfg.policy.token_budget == 256
    assert differing["policy.token_budget"] == (512, 256)


def test_settings_that_there_are_no_longer_are_one_line(hydra, tmp_path):
    begin(hydra, tmp_path, *OWN, change=lambda run: run["told"]["baseline"].update(forgotten=1))
    with pytest.raises(SettingError, match=r"^ckpt_path: .*another version: baseline\.forgotten"):
        go_on(tmp_path)


def test_a_checkpoint_that_does_not_say_what_it_was_made_with(hydra, tmp_path):
    begin(hydra, tmp_path, *OWN, change=dict.clear)
    with pytest.raises(SettingError, match=r"^ckpt_path: .*earlier version"):
        go_on(tmp_path, *OWN)


def test_the_last_run_is_the_newest_of_its_name_or_of_all(hydra, tmp_path):
    runs = [tmp_path / "runs" / name / "then" for name in ("pocket", "other")]
    for run in runs:
        begin(hydra, run, *OWN)
    place = f"paths.root={tmp_path}"

    def found(*typed):
        cfg = resumed(job_config(hydra("train", [*typed, place, "ckpt_path=last"], RunMode.RUN)), typed)
        return cfg.paths.output_dir

    assert found() == str(runs[1])
    assert found("experiment=pocket") == found("name=pocket") == str(runs[0])


def test_where_hydra_is_asked_for_more_it_has_the_whole_command_line():
    assert resuming(["experiment=pocket"]) is None
    assert resuming(["ckpt_path=last", "-m"]) is None
    assert resuming(["--cfg", "job", "ckpt_path=last"]) is None
    assert resuming(["ckpt_path=a", "--config-dir", "/b"]) == ["ckpt_path=a", "hydra.searchpath=[file:///b]"]


def test_a_command_line_is_refused_in_one_line(begun, tmp_path, refused):
    shutil.copytree(begun[LIGHT], tmp_path / "run")
    result = refused("ckpt_path=last", "schedule=constant", "schedule.lr=0.1", "baseline=value")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ckpt_path: ")
    assert "baseline=RLOOBaseline, not ValueBaseline" in line


@pytest.mark.parametrize(
    ("before", "now", "may"),
    [
        (1, 2.5, True),
        (None, 3, True),
        ([0.9, 0.95], [0.8, 0.9], True),
        ([0.9], [0.8, 0.9], False),
        (True, 1, False),
        ("a", "b", False),
        ({"_target_": "A"}, {"_target_": "B"}, False),
        ({"_target_": "A", "x": 1}, {"_target_": "A"}, True),
    ],
)
def test_numbers_may_change_where_something_is_remembered(before, now, may):
    assert (unlike({"part": before}, {"part": now}, "x") is None) == may


def test_changes_are_put_into_the_stored_configuration():
    stored = {"a": 1, "b": {"_target_": "B", "x": 1, "gone": 2}, "c": {"y": 1}}
    before = {"a": 2, "b": {"_target_": "B", "x": 1, "new": 3}, "c": {"y": 1}, "d": 4}
    now = {"a": 2, "b": {"_target_": "B", "x": 5, "new": 3}, "c": {"_target_": "C"}, "d": 4, "e": 6}
    merged = with_changes(completed(stored, before), before, now)
    part = {"_target_": "B", "x": 5, "gone": 2, "new": 3}
    assert merged == {"a": 1, "b": part, "c": {"_target_": "C"}, "d": 4, "e": 6}
    assert with_changes(stored, before, before) == stored
    assert with_changes({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}) == {"a": 1}
