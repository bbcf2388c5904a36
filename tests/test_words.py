"""What the parts of a method are called in plain words, in picture, report and TensorBoard."""

from types import SimpleNamespace

import pytest
from conftest import ROOT
from hydra.utils import instantiate
from test_conf import composed

from callbacks.tags import FIRST, NAMES, TAGS, meaning, name
from oblr.baselines.rloo import RLOOBaseline
from oblr.policy.method import in_words

PARTS = ("baseline", "loss", "schedule", "gradnorm", "kl")


def options(group: str) -> list[str]:
    return sorted({path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} - {"none" if group == "kl" else ""})


@pytest.mark.parametrize("group", PARTS)
def test_every_option_has_words_of_its_own(group):
    """Not the name of its class, which stands for an option that somebody has added without words."""
    made = {option: instantiate(composed(f"{group}={option}")[group], _convert_="all") for option in options(group)}
    words = {option: part.words for option, part in made.items()}
    assert len(set(words.values())) == len(words)
    assert [option for option, part in made.items() if type(part).__name__ in words[option]] == []


@pytest.mark.parametrize("schedule", options("schedule"))
def test_what_governs_a_rate_is_told_with_the_numbers_of_the_run(schedule):
    """Its eta0; Theorem 4 where an SNR enters, and only there; and where that comes from."""
    words = instantiate(composed(f"schedule={schedule}", "eta0=0.0375").schedule, _convert_="all").words
    assert "0.0375" in words
    assert ("Theorem 4" in words) == ("SNR" in words) == schedule.startswith("snr")
    assert ("noise factor" in words) == schedule.startswith("noise")


def test_the_estimator_of_the_snr_is_told():
    words = {
        estimator: instantiate(composed("schedule=snr", f"schedule.estimator={estimator}").schedule).words
        for estimator in ("plug_in", "debiased", "ema")
    }
    assert len(set(words.values())) == 3
    assert "moving average" in words["ema"]
    assert "moving average" not in words["plug_in"] + words["debiased"]


def policy(**changes):
    cfg = composed("experiment=pocket", "optimizer=adamw")
    parts = {part: instantiate(cfg[part], _convert_="all") for part in PARTS}
    optimizer = instantiate(cfg.optimizer, _convert_="all")
    return SimpleNamespace(**parts | {"make_optimizer": optimizer, "lora": None} | changes)


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
