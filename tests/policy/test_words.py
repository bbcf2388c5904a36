"""What the parts of a method are called in plain words, in picture, report and TensorBoard."""

from types import SimpleNamespace

import pytest
from conftest import ROOT
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from oblr.baselines.rloo import RLOOBaseline
from oblr.policy.method import in_words
from oblr.record.tags import FIRST, NAMES, TAGS, meaning, name

PARTS = ("baseline", "loss", "schedule", "gradnorm", "kl")


def options(group: str) -> list[str]:
    return sorted({path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} - {"none" if group == "kl" else ""})


def made(group: str, option: str, *overrides: str):
    """The part of a run whose other settings are few: a whole configuration takes long to compose."""
    others = ("+eta0=0.0375", "+steps=10", "+seed=1")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose(overrides=[f"+{group}={option}", *others, *overrides])
    return instantiate(cfg[group], _convert_="all")


@pytest.mark.parametrize("group", PARTS)
def test_every_option_has_words_of_its_own(group):
    """Not the name of its class, which stands for an option that somebody has added without words."""
    parts = {option: made(group, option) for option in options(group)}
    parts = {option: part for option, part in parts.items() if not getattr(part, "warning", "")}  # no old names
    words = {option: part.words for option, part in parts.items()}
    assert len(set(words.values())) == len(words)
    assert [option for option, part in parts.items() if type(part).__name__ in words[option]] == []


@pytest.mark.parametrize("schedule", options("schedule"))
def test_what_governs_a_rate_is_told_with_the_numbers_of_the_run(schedule):
    """Its eta0; Theorem 4 where an SNR enters, and only there; and where that comes from."""
    words = made("schedule", schedule).words
    assert "0.0375" in words
    assert ("Theorem 4" in words) == ("SNR" in words) == schedule.startswith("snr")
    assert ("noise factor" in words) == schedule.startswith("noise")


def test_the_estimator_of_the_snr_is_told():
    words = {
        estimator: made("schedule", "snr", f"schedule.estimator={estimator}").words
        for estimator in ("plug_in", "debiased", "ema")
    }
    assert len(set(words.values())) == 3
    assert "moving average" in words["ema"]
    assert "moving average" not in words["plug_in"] + words["debiased"]


def policy(**changes):
    chosen = {"baseline": "gradient_weighted", "loss": "policy_gradient", "schedule": "snr", "gradnorm": "exact"}
    parts = {group: made(group, option) for group, option in chosen.items()}
    others = {"kl": None, "make_optimizer": made("optimizer", "adamw"), "lora": None}
    return SimpleNamespace(**parts | others | changes)


def test_the_method_is_told_as_far_as_it_is_used():
    whole, plain = in_words(policy()), in_words(policy(baseline=RLOOBaseline()))
    assert whole.keys() - plain.keys() == {"weights"}
    assert whole["optimizer"] == "AdamW, betas [0.9, 0.95]"
    assert "penalty" not in whole


def test_every_number_has_a_name_that_is_no_tag():
    tags = [tag for tag in TAGS if "*" not in tag] + [tag for patterns in FIRST.values() for tag in patterns]
    names = [name(tag.replace(".*", "gradient_weighted")) for tag in tags]
    assert [text for text in names if "/" in text or "_" in text] == []
    assert all(meaning(tag) for tag in NAMES)
    assert len(set(NAMES.values())) == len(NAMES)
