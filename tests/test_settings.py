"""What every setting may be: each has a rule and a meaning, rules refuse, and the reference says what they are."""

import inspect
import math
import random
import re
from typing import Annotated, Any, get_args, get_origin

import pytest
from bad_settings import OPTIONS, bad_values, cases, is_right, outcome, tries, typed
from conftest import ROOT, run_script
from hydra.utils import get_object
from hypothesis import HealthCheck, given, settings, strategies
from omegaconf import OmegaConf
from test_conf import composed

from oblr.errors import SettingError
from oblr.settings.check import CLASSES, check_settings
from oblr.settings.data import DATA
from oblr.settings.kinds import Part, Parts, Section, in_words
from oblr.settings.reference import reference
from oblr.settings.scripts import SCRIPTS

#: Arguments that scripts give, or torch.
SUPPLIED = {"tokenizer", "end_ids", "vocabulary", "params", "callbacks", "plugins", "level"}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_take_what_the_schema_says_and_nothing_else(name):
    parameters = inspect.signature(get_object(name)).parameters.values()
    named = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    own = {setting for setting in CLASSES[name] if setting != "*"}
    assert own - named == set()
    assert named - own - SUPPLIED == set()


def test_every_class_of_the_shipped_configuration_is_in_the_schema():
    text = "".join(path.read_text() for path in (ROOT / "conf").rglob("*.yaml"))
    named = set(re.findall(r"_target_: ([\w.]+)", text))
    assert named - CLASSES.keys() == {  # others' own
        "hydra.utils.get_method",
        "lightning.pytorch.loggers.MLFlowLogger",
        "lightning.pytorch.loggers.WandbLogger",
    }
    assert len(named) > 60


def test_every_setting_has_a_meaning_and_every_number_bounds():
    count = 0
    for section in (*SCRIPTS.values(), {k: v for k, v in DATA.items() if k != "*"}, *CLASSES.values()):
        for path, kind, meaning in every(section):
            assert meaning, path
            assert bounded(kind), path
            assert in_words(kind), path
            count += 1
    assert count > 300


def every(section: Section, path: str = ""):
    for name, (kind, meaning) in section.items():
        yield f"{path}{name}", kind, meaning
        if isinstance(kind, dict) and kind is not DATA:
            yield from every(kind, f"{path}{name}.")


def bounded(kind: Any) -> bool:
    """No number in it is without a range."""
    if kind is int or kind is float:
        return False
    if isinstance(kind, dict | Part | Parts) or get_origin(kind) is Annotated:
        return True
    return all(bounded(part) for part in get_args(kind))


def test_the_reference_is_of_these_settings():
    assert (ROOT / "docs" / "settings.md").read_text() == reference(ROOT / "conf"), "make it again: see its head"


@pytest.fixture(scope="module")
def pocket():
    return composed("experiment=pocket", "schedule=snr")


def changed(cfg, path, value):
    cfg = cfg.copy()
    OmegaConf.set_struct(cfg, False)
    OmegaConf.update(cfg, path, value, merge=False)
    return cfg


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("eta0", -1, "it should be greater than 0"),
        ("policy.token_budget", -4, "it should be greater than or equal to 1"),
        ("optimizer.lr", -1, "greater than or equal to 0"),
        ("steps", -5, "greater than or equal to 1"),
        ("steps", 1e3, "a valid integer"),
        ("steps", 10**40, "less than or equal to 2147483647"),
        ("seed", "abc", "a valid integer"),
        ("trainer.devices", 0, "greater than or equal to 1, or should be a valid list, or should be 'auto'"),
        ("rollout.temperature", math.nan, "a finite number"),
        ("rollout.temperature", 0.001, "greater than or equal to 0.01"),
        ("rollout.group_size", True, "a valid integer"),
        ("rollout.group_size", None, "None cannot work"),
        ("callbacks", None, "a section of settings"),
        ("callbacks.summary", None, "~callbacks.summary leaves it out"),
        ("callbacks.evaluation.evry", 3, "did you mean every?"),
        ("callbacks.mine", 5, "it should have a _target_"),
        ("callbacks.mine", {"_target_": "callbacks.snr.SNRMonitr"}, "did you mean callbacks.snr.SNRMonitor?"),
        ("policy.token_budgt", 5, "did you mean token_budget?"),
        ("stpes", 5, "did you mean steps?"),
        ("schedule.estimator", "best", "'plug_in', 'debiased' or 'ema'"),
        ("baseline", {"_target_": "oblr.losses.kl.KLPenalty"}, "is none of oblr.baselines"),
        ("data.train.template", "???", "give it one"),
        ("gradnorm", None, "names no class"),
        ("optimizer._partial_", 3, "true or false"),
        # rules of two settings
        ("rollout.max_new_tokens", 128, "leaves no room for a prompt"),
        ("rollout.prompts_per_step", 3, None),
        ("trainer.devices", 3, "cannot be shared by 3 devices"),
        ("trainer.gradient_clip_val", 1.0, "an optimizer of its own"),
        ("schedule.warm_up", 100, "not less than the run's 100 steps"),
        ("policy.cpu_offload", True, "use trainer=fsdp"),
        ("optimizer.nesterov", True, "give optimizer.momentum"),
    ],
)
def test_what_is_said(pocket, path, value, words):
    if words is None:
        return check_settings(changed(pocket, path, value), "train")
    with pytest.raises(SettingError) as raised:
        check_settings(changed(pocket, path, value), "train")
    assert re.match(rf"({re.escape(path)}|rollout\.prompts_per_step)[.:]", str(raised.value))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("picked", "visible", "said"),
    [
        ([1], None, "CUDA_VISIBLE_DEVICES=1 trainer.devices=1"),
        ([3, 1], "", "CUDA_VISIBLE_DEVICES=3,1 trainer.devices=2"),
        ([1, 2], "4,GPU-5e,6", "CUDA_VISIBLE_DEVICES=GPU-5e,6 trainer.devices=2"),
        ([0, 0], "4,5", "CUDA_VISIBLE_DEVICES=4 trainer.devices=1"),
        ([0], "4,5", None),
        ([0, 1], None, None),
    ],
)
def test_gpus_are_picked_before_anything_sees_them(pocket, monkeypatch, picked, visible, said):
    """The policy would be on the one that was picked, and an engine in its process or beside it on the first."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if said is None:
        return check_settings(changed(pocket, "trainer.devices", picked), "train")
    with pytest.raises(SettingError, match=r"^trainer\.devices: .* picks GPUs") as raised:
        check_settings(changed(pocket, "trainer.devices", picked), "train")
    assert said in str(raised.value)


@pytest.mark.parametrize("picked", ["1", "1,", "1,2", "-1"])
def test_gpus_picked_in_words_are_refused(pocket, picked):
    """As Lightning would read them."""
    with pytest.raises(SettingError, match=r"^trainer\.devices: "):
        check_settings(changed(pocket, "trainer.devices", picked), "train")


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (("k=[1,9]",), "k"),
        (("temperature=0",), "samples"),
        (("temperature=0.001",), "temperature"),
        (("model=null",), "model"),
        (("compare=[a]",), "compare"),
    ],
)
def test_rules_of_evaluations(overrides, setting):
    cfg = composed("benchmarks=[chain_sum]", "model=models/pocket", *overrides)
    with pytest.raises(SettingError, match=rf"^{setting}: "):
        check_settings(cfg, "eval")


@pytest.mark.parametrize(
    ("override", "setting"),
    [
        ("pretraining.architecture.num_key_value_heads=3", "pretraining.architecture.num_key_value_heads"),
        ("pretraining.max_tokens=300", "pretraining.max_tokens"),
        ("pretraining.corpus.mixture={careful:0}", "pretraining.corpus.mixture"),
    ],
)
def test_rules_of_pretraining(override, setting):
    cfg = composed("experiment=pocket_base", override)
    if "mixture" in override:
        cfg.pretraining.corpus.mixture = {"careful": 0.0}
    with pytest.raises(SettingError, match=rf"^{re.escape(setting)}: "):
        check_settings(cfg, "pretrain")


def test_settings_of_other_peoples_classes_are_theirs(pocket):
    mine = {"_target_": "mine.Baseline", "decay": 7, "inner": {"_target_": "oblr.baselines.value.ValueBaseline"}}
    check_settings(changed(pocket, "baseline", mine), "train")
    mine["inner"]["decay"] = 7
    with pytest.raises(SettingError, match=r"^baseline\.inner\.decay: 7"):
        check_settings(changed(pocket, "baseline", mine), "train")


def test_a_class_of_ours_that_the_schema_does_not_know_yet_can_be_tried_out(pocket):
    made = {"_target_": "oblr.baselines.base.live_groups", "anything": 7}
    check_settings(changed(pocket, "baseline", made), "train")


def test_a_reference_is_looked_at_where_it_leads_to_and_where_it_stands(pocket):
    with pytest.raises(SettingError, match=r"^eta0: -1"):
        check_settings(changed(pocket, "eta0", -1), "train")
    with pytest.raises(SettingError, match=r"^policy\.token_budget: 0"):
        check_settings(changed(changed(pocket, "seed", 0), "policy.token_budget", "${seed}"), "train")
    with pytest.raises(SettingError, match=r"^policy\.loss: \${seed} is 1"):
        check_settings(changed(pocket, "policy.loss", "${seed}"), "train")


def test_a_variable_of_the_users_is_one_that_is_used(pocket):
    cfg = changed(changed(pocket, "mine", 3), "steps", "${mine}")
    check_settings(cfg, "train")
    with pytest.raises(SettingError, match=r"^yours: there is no such setting"):
        check_settings(changed(cfg, "yours", 3), "train")


@pytest.fixture(scope="module")
def known():
    """Every setting and section of every script."""
    found = [case for script in OPTIONS for case in cases(script)]
    assert len(found) > 400
    return found


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.data())
def test_bad_values_end_in_one_line(known, data, tmp_path_factory):
    """By the command line's own way, in this process."""
    case = data.draw(strategies.sampled_from([case for case in known if bad_values(case)]))
    override = f"{case.path}={typed(data.draw(strategies.sampled_from(bad_values(case))))}"
    found = outcome(case, override, tmp_path_factory.mktemp("nothing"))
    assert is_right(found), (case.script, override, found)


def test_every_setting_of_every_script_is_among_what_is_tried(known):
    tried = {(case.script, case.path) for case, _ in tries(random.Random(0))}
    assert {(case.script, case.path) for case in known if bad_values(case)} <= tried


@pytest.mark.parametrize(
    ("script", "override"),
    [
        ("eval.py", "samples=1e3"),
        ("pretrain.py", "pretraining.lr=nan"),
        ("sweep.py", "rollout.engines.vllm.gpu_memory_utilization=7"),
    ],
)
def test_as_a_user_types_them(tmp_path, script, override):
    start = {"eval.py": ("model=models/pocket",), "pretrain.py": ("experiment=pocket_base",)}
    places = ("export_to",) if script == "pretrain.py" else ("paths.runs", "paths.output_dir")
    result = run_script(
        script, *start.get(script, ("experiment=sweep",)), *(f"{p}={tmp_path / 'x'}" for p in places), override
    )
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {override.partition('=')[0]}: ")
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []
