"""A model's folder whose parts do not fit each other ends in one line, by whatever way it comes into a run."""

import json
import shutil
from pathlib import Path

import pytest
from bad_folders import FAULTS, SOUND, make

from oblr.checks import check_model, check_policy
from oblr.data.ends import end_tokens
from oblr.data.prompts import check_ids, encode
from oblr.errors import SettingError
from oblr.policy.loading import check_numbers, load_tokenizer
from oblr.settings.models import find_model


@pytest.fixture(scope="session")
def sound(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "model")


def look_at(path: str) -> None:
    """All that is looked at before a run, and what it computes with after."""
    find_model.__wrapped__("policy.path", path)
    config, tokenizer = check_policy(path, "float32", 128), load_tokenizer(path)
    vocabulary = check_model(path, config, tokenizer, exported=True)
    end_tokens(path, tokenizer)
    check_ids(encode(tokenizer, "3 + 4 ="), "0", vocabulary)
    check_numbers(path)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line(sound, tmp_path, monkeypatch, fault):
    change, words = FAULTS[fault]
    shutil.copytree(sound, tmp_path / "model")
    change(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError) as error:
        look_at(str(tmp_path / "model"))
    assert error.value.setting in ("policy.path", "prompt")
    assert words in str(error.value)
    assert len(str(error.value)) < 600
    assert not list(tmp_path.glob("**/executed"))


@pytest.mark.parametrize("change", SOUND)
def test_what_fits_is_taken(sound, tmp_path, change):
    shutil.copytree(sound, tmp_path / "model")
    SOUND[change](tmp_path / "model")
    look_at(str(tmp_path / "model"))
