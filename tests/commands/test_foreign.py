"""What a configuration from a folder may name: classes of the reference, and what the user has written."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from oblr.commands.compose import register_resolvers
from oblr.commands.foreign import check_foreign, known, plain_overrides
from oblr.errors import SettingError

SOURCE = Path("run")
OURS = {"baseline": {"_target_": "oblr.baselines.rloo.RLOOBaseline"}, "lr": "${baseline}", "root": "${root:}"}


def check(config, *typed):
    register_resolvers()
    check_foreign(OmegaConf.create(config), typed, "ckpt_path", SOURCE)


def test_what_the_reference_has_may_be_named():
    check(OURS)


@pytest.mark.parametrize(
    "section",
    [
        {"_target_": "os.system"},
        {"a": [{"b": {"_target_": "os.system"}}]},
        {"_target_": "${mine.name}", "name": "os.system"},
        {"_target_": "oblr.run.disk.write_whole"},
        {"_target_": "hydra.utils.instantiate", "config": {}},
        {"_target_": "hydra.utils.get_method", "path": "os.system"},
        {"_target_": "hydra.utils.get_method", "_args_": ["os.system"]},
        {"_target_": "hydra.utils.get_method", "path": "random.random", "_args_": ["os.system"]},
        {"_target_": ["os.system"]},
    ],
)
def test_anything_else_is_refused(section):
    with pytest.raises(SettingError, match=r"^ckpt_path: run would run "):
        check(OURS | {"mine": section})


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "a ${ oc.env : HOME}", "${${name}:HOME}", "${oc.create:${a}}"])
def test_what_is_read_from_the_environment(value):
    """Also where the function's name is put together, in a list, and inside another function."""
    for place in (value, [value], f"${{oc.select:a,{value}}}"):
        with pytest.raises(SettingError, match=r"^ckpt_path: run would call "):
            check({"a": 1, "name": "oc.env", "mine": {"path": place}})


def test_what_is_typed_is_the_users(tmp_path):
    mine = {"mine": {"_target_": "my.Class"}, "python": {"_target_": "hydra.utils.get_method", "path": "my.reward"}}
    check(mine, "mine._target_=my.Class", "reward.path=my.reward")
    check(mine, "+mine={_target_: my.Class}", "reward=python", "reward.path=my.reward")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.yaml").write_text("_target_: my.Class\npath: [my.reward]\n")
    check(mine, f"hydra.searchpath=[file://{tmp_path}]")
    check({"a": "${oc.env:HOME}"}, "a=${oc.env:HOME}")
    with pytest.raises(SettingError):
        check({"a": "${oc.env:HOME}"}, "a=${oc.env:USER}")
    assert "my.Class" not in known([])


def test_overrides_of_a_checkpoint():
    own = ["eta0=1", "~callbacks.summary", "hydra.searchpath=[file:///a]"]
    assert plain_overrides(own, [], SOURCE) == own
    assert plain_overrides(["hydra.searchpath=[pkg://a]", "hydra.run.dir=/", "hydra/launcher=a"], [], SOURCE) == []
    with pytest.raises(SettingError, match="no overrides"):
        plain_overrides(["a b = = c"], [], SOURCE)
    with pytest.raises(SettingError, match=r"would call oc.env in experiment"):
        plain_overrides(["experiment=${oc.env:HOME}"], [], SOURCE)


@pytest.mark.parametrize(("name", "value"), [("trust", True), ("readable", ["/home"]), ("readable", "/home")])
def test_nobody_else_frees_a_reward(name, value):
    """Neither for a run that goes on nor for a benchmark whose responses are scored anew."""
    config = {"reward_pool": {"timeout": 5.0, "trust": False, "readable": [], name: value}}
    with pytest.raises(SettingError, match=rf"^ckpt_path: run would let .* by reward_pool\.{name}"):
        check(config)
    check(config, f"reward_pool.{name}={value}".replace("'", ""))
    check({"reward_pool": {"timeout": 5.0, "trust": False, "readable": []}})
