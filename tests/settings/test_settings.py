"""What every setting may be: each has a rule and a meaning, rules refuse, and the reference says what they are."""

import inspect
import math
import random
import re
from typing import Annotated, Any, get_args, get_origin

import pytest
from bad_settings import OPTIONS, POOL, bad_values, cases, is_right, outcome, tries, typed
from composing import composed
from conftest import ROOT, run_script
from hydra.utils import get_object
from hypothesis import HealthCheck, given, settings, strategies
from omegaconf import OmegaConf
from pydantic_words import wanted

import oblr.baselines
from oblr.errors import SettingError
from oblr.kinds import GIVEN, Part, check
from oblr.schedules.noise import NoiseSchedule
from oblr.settings.check import SECTIONS, check_settings
from oblr.settings.declared import OURS, declared, kind_of
from oblr.settings.kinds import Parts, Section, in_words
from oblr.settings.others import OTHERS
from oblr.settings.reference import reference
from oblr.settings.scripts import DATA, SCRIPTS

#: All that the shipped configuration names.
NAMED = set(re.findall(r"_target_: ([\w.]+)", "".join(path.read_text() for path in (ROOT / "conf").rglob("*.yaml"))))
#: Of them ours, with their settings.
CLASSES = {name: declared(name) for name in sorted(NAMED) if name.startswith(OURS)}
#: Arguments of other people's classes that scripts give, or torch.
SUPPLIED = {"params", "callbacks", "plugins"}


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_read_of_a_constructor_is_what_it_is_when_it_is_imported(name):
    parameters = inspect.signature(get_object(name)).parameters.values()
    said = {
        "*" if parameter.kind is parameter.VAR_KEYWORD else parameter.name: kind
        for parameter in parameters
        if (kind := kind_of(parameter.annotation)) is not GIVEN
    }
    assert said.keys() == CLASSES[name].keys()
    for setting, (kind, _) in CLASSES[name].items():
        assert kind == said[setting] or (isinstance(kind, dict | Part | Parts) and has_class(said[setting]))


def has_class(kind: Any) -> bool:
    """Whether it is made of more than numbers, words and switches."""
    return kind is Any or isinstance(kind, Part | Parts) or any(map(has_class, get_args(kind)))


@pytest.mark.parametrize("name", OTHERS)
def test_other_peoples_classes_take_what_is_said_of_them_and_nothing_else(name):
    parameters = inspect.signature(get_object(name)).parameters.values()
    named = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    assert OTHERS[name].keys() - named == set()
    assert named - OTHERS[name].keys() - SUPPLIED == set()


def test_the_settings_of_all_that_the_shipped_configuration_names_are_known():
    assert NAMED - CLASSES.keys() - OTHERS.keys() == {  # others' own
        "hydra.utils.get_method",
        "lightning.pytorch.loggers.MLFlowLogger",
        "lightning.pytorch.loggers.WandbLogger",
    }
    assert len(CLASSES) > 60


def test_every_setting_has_a_meaning_and_every_number_bounds():
    count = 0
    for section in (
        *SCRIPTS.values(),
        {k: v for k, v in DATA.items() if k != "*"},
        *CLASSES.values(),
        *OTHERS.values(),
    ):
        for path, kind, meaning in every(section):
            assert meaning, path
            assert bounded(kind), path
            assert in_words(kind), path
            count += 1
    assert count > 300


def test_values_are_refused_that_pydantic_refuses_and_in_its_words():
    """But for two: of what is empty it counts items and characters, and large integers it cannot read as a choice."""
    sections = (*SCRIPTS.values(), {k: v for k, v in DATA.items() if k != "*"}, *CLASSES.values(), *OTHERS.values())
    kinds = [kind for section in sections for _, kind, _ in every(section) if not isinstance(kind, SECTIONS)]
    right = ([0.5, 0.5], [1, 2], ["a"], [""], {"a": 0.5}, {"a": "b"}, {1: 1}, "auto", "norm", 1.0, 2)
    counted = re.compile("(String|List) should have at least 1 .*")
    for kind in {str(kind): kind for kind in kinds}.values():
        for value in (*POOL, *right):
            said = dict.fromkeys(counted.sub("should not be empty", words) for words in wanted(kind, value))
            if not said:
                check("a", kind, value)
                continue
            with pytest.raises(SettingError) as error:
                check("a", kind, value)
            if not any(words.startswith("Unable to parse") for words in said):
                assert error.value.fix == f"it {', or '.join(said)}", (kind, value)


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


def test_the_reference_has_range_and_meaning_and_what_is_shipped():
    rows = reference(ROOT / "conf").splitlines()
    assert any(row.startswith("| `eta0` | number > 0 and ≤ 1000 | `0.01` | η₀, ") for row in rows)
    (place,) = (at for at, row in enumerate(rows) if row.startswith("## `oblr.schedules.noise.NoiseSchedule` at "))
    power = next(row for row in rows[place:] if row.startswith("| `power` | "))
    assert power.startswith("| `power` | number > 0 and ≤ 1 | `1.0` | ")
    assert [row for row in rows if re.search(r":\w+:`|as for `", row)] == []  # what only Python's readers know


def test_what_is_said_elsewhere_is_what_is_said_there():
    local, benchmark = declared("oblr.evaluation.local.local"), declared("oblr.evaluation.attempts.Benchmark")
    pool, table = declared("oblr.rewards.pool.RewardPool"), declared("oblr.data.table.TableProblems")
    assert local["trust"] == benchmark["trust"] == pool["trust"]
    assert local["labels"] == table["labels"] == declared("oblr.data.choices.offered")["labels"]


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


def test_a_new_file_is_all_that_a_new_class_of_ours_needs(pocket, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import not_there\n"
        "from pathlib import Path\n"
        "from oblr.baselines.value import ValueBaseline\n"
        "from oblr.kinds import Given, Share\n"
        "class Mine(ValueBaseline):\n"
        "    def __init__(self, mixed: Share | None, file: 'Path', untold, given: Given[not_there.A]):\n"
        "        pass\n"
        "class Heir(ValueBaseline): ...\n"
    )
    monkeypatch.setattr(oblr.baselines, "__path__", [*oblr.baselines.__path__, str(tmp_path)])
    mine = {"_target_": "oblr.baselines.mine.Mine", "mixed": None, "file": "a", "untold": [7]}
    check_settings(changed(pocket, "baseline", mine), "train")
    for setting, value, words in (
        ("mixed", 7, "less than or equal to 1"),
        ("mixt", 1, "did you mean mixed?"),
        ("given", 1, "there is no such setting"),
        ("decay", 1, "there is no such setting"),
    ):
        with pytest.raises(SettingError, match=rf"^baseline\.{setting}: .*{re.escape(words)}"):
            check_settings(changed(pocket, "baseline", mine | {setting: value}), "train")
    heir = {"_target_": "oblr.baselines.mine.Heir", "decay": 7}
    with pytest.raises(SettingError, match=r"^baseline\.decay: 7 cannot work"):
        check_settings(changed(pocket, "baseline", heir), "train")


def test_a_part_may_be_left_out_where_its_class_may_be_none(pocket):
    check_settings(changed(pocket, "policy.lora", None), "train")
    with pytest.raises(SettingError, match=r"^policy\.loss: None names no class"):
        check_settings(changed(pocket, "policy.loss", None), "train")


@pytest.mark.parametrize(
    ("slip", "argument"),
    [
        ({"power": 2}, "power"),
        ({"level_steps": 0}, "level_steps"),
        ({"level_steps": 1.5}, "level_steps"),
        ({"power": math.nan}, "power"),
        ({"eta0": math.inf}, "eta0"),
    ],
)
def test_who_constructs_in_python_is_told_the_same(slip, argument):
    with pytest.raises(SettingError, match=rf"^schedule\.{argument}: .* cannot work \(it should be "):
        NoiseSchedule(**{"eta0": 1e-2} | slip)
    with pytest.raises(SettingError, match=r"^schedule\.level_steps: 0 "):
        NoiseSchedule(1e-2, 0)
    with pytest.raises(TypeError, match="eta"):
        NoiseSchedule(eta=3)
    assert (NoiseSchedule(1e-2, 3, power=0.5).level_steps, NoiseSchedule(1, 3).power) == (3, 1.0)


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


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.data())
def test_bad_values_end_in_one_line(known, data, tmp_path_factory):
    """By the command line's own way, in this process."""
    case = data.draw(strategies.sampled_from([case for case in known if bad_values(case)]))
    override = f"{case.path}={typed(data.draw(strategies.sampled_from(bad_values(case))))}"
    found = outcome(case, override, tmp_path_factory.mktemp("nothing"))
    assert is_right(found), (case.script, override, found)


@pytest.mark.wide
@pytest.mark.parametrize("script", OPTIONS)
def test_a_bad_value_of_every_setting_ends_in_one_line(script, tmp_path):
    """One of its bad values, which is drawn, under the first choice of options that has the setting."""
    tried = [(case, override) for case, override in tries(random.Random(0)) if case.script == script]
    drawn = {case.path: (case, override) for case, override in tried if not override.startswith("+")}
    found = {override: outcome(case, override, tmp_path) for case, override in drawn.values()}
    assert not {override: one for override, one in found.items() if not is_right(one)}


@pytest.mark.wide
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
