"""What every setting may be: each number and switch of the shipped configuration has a rule, and rules refuse."""

import math
import re
from typing import Any

import pytest
import yaml
from conftest import ROOT
from hydra.utils import get_class
from omegaconf import OmegaConf

from oblr.commands.settings import check_settings, leaves, renew_paths, rule
from oblr.errors import SettingError
from oblr.run.sweeps import differences


def shipped() -> dict[str, Any]:
    """Path → value, of every setting in ``conf/`` but the parameters of tasks."""
    found = {}
    for path in (ROOT / "conf").rglob("*.yaml"):
        text = path.read_text()
        group = path.parent.name if path.parent != ROOT / "conf" else ""
        package = "" if group == "experiment" or text.startswith("# @package _global_") else group
        section = {name: value for name, value in yaml.safe_load(text).items() if name not in ("defaults", "hydra")}
        found |= dict(leaves(section, package))
    return {path: value for path, value in found.items() if "params." not in path}


EVERY = shipped()
NUMBERS = [path for path, value in EVERY.items() if type(value) in (int, float)]


def test_numbers_and_switches_have_rules():
    unruled = {path for path, value in EVERY.items() if isinstance(value, bool | int | float) and rule(path) is Any}
    assert unruled == set()
    assert len(EVERY) > 200


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "abc", [[]]], ids=repr)
def test_what_is_no_number(bad):
    """Each setting that is one, one at a time."""
    assert len(NUMBERS) > 60
    for path in NUMBERS:
        with pytest.raises(SettingError, match=f"^{re.escape(path)}"):
            check_settings(OmegaConf.create(nested(path, bad)))


def test_numbers_that_are_out_of_range():
    """All but weights of rewards are bounded below."""
    for path in NUMBERS:
        if not path.endswith(".weight"):
            with pytest.raises(SettingError, match=f"^{re.escape(path)}: -1"):
                check_settings(OmegaConf.create(nested(path, -1)))


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("eta0", -1, "it should be greater than 0"),
        ("policy.token_budget", -4, "it should be greater than or equal to 1"),
        ("optimizer.lr", -1, "greater than or equal to 0"),
        ("steps", -5, "greater than or equal to 1"),
        ("steps", 1e3, "a valid integer"),
        ("seed", "abc", "a valid integer"),
        ("trainer.devices", 0, "greater than or equal to 1, or should be a valid list, or should be 'auto'"),
        ("rollout.temperature", math.nan, "a finite number"),
        ("rollout.group_size", True, "a valid integer"),
        ("callbacks", None, "a valid dictionary"),
        ("schedule.estimator", "best", "'plug_in', 'debiased' or 'ema'"),
        ("reward.path", "???", "give it one"),
    ],
)
def test_what_is_said(path, value, words):
    with pytest.raises(SettingError) as raised:
        check_settings(OmegaConf.create(nested(path, value)))
    assert str(raised.value).startswith(f"{path}: ")
    assert words in str(raised.value)


def test_settings_of_other_peoples_classes_are_theirs():
    check_settings(OmegaConf.create({"baseline": {"_target_": "mine.Baseline", "decay": 7}}))
    with pytest.raises(SettingError, match=r"^baseline\.decay: 7"):
        check_settings(OmegaConf.create({"baseline": {"_target_": "oblr.baselines.x.Baseline", "decay": 7}}))


def test_a_reference_is_looked_at_where_it_leads_to():
    with pytest.raises(SettingError, match=r"^eta0: -1"):
        check_settings(OmegaConf.create({"schedule": {"eta0": "${eta0}"}, "eta0": -1}))


def test_a_run_that_names_the_old_path_is_the_same_run():
    """A sweep that was begun before the move goes on."""
    there = {"policy": {"_target_": "oblr.policy.PolicyModule"}, "steps": 2}
    here = {"policy": {"_target_": "oblr.policy.step.PolicyModule"}, "steps": 2}
    assert differences(there, here) == []
    assert differences(there, here | {"steps": 3}) == ["steps=2 there, 3 here"]
    assert len(differences({"policy": {"_target_": "mine.Policy"}}, {"policy": here["policy"]})) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("oblr.policy.PolicyModule", "oblr.policy.step.PolicyModule"),
        ("oblr.strategies.FSDP", "oblr.run.strategies.FSDP"),
        ("oblr.prompts.PromptFormat", "oblr.data.prompts.PromptFormat"),
        ("oblr.pretraining.PretrainModule", "oblr.policy.pretraining.PretrainModule"),
    ],
)
def test_old_paths_go_on_working(old, new, capfd):
    cfg = OmegaConf.create({"mine": {"deep": {"_target_": old}}, "other": {"_target_": "oblr.types.Problem"}})
    renew_paths(cfg)
    assert OmegaConf.to_container(cfg) == {
        "mine": {"deep": {"_target_": new}},
        "other": {"_target_": "oblr.types.Problem"},
    }
    (line,) = capfd.readouterr().err.splitlines()
    assert line == f"warning     mine.deep._target_: {old} is {new} now; the old path goes with release 0.3"
    assert get_class(new)
