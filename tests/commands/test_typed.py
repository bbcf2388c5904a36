"""What is typed is what a setting gets."""

import pytest
from conftest import run_script
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from oblr.commands.typed import GRAMMAR, quoted

#: That Hydra takes out of what has no quotes, splits, or reads as what is no text.
PLAIN = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\"'[]{}()\\,=$%*@?|:+"), min_size=1)


@given(PLAIN)
def test_a_folder_of_any_name_is_itself(name):
    read = OverridesParser.create().parse_override(quoted(f"paths.models=/of é/{name}/models"))
    assert read.value() == f"/of é/{name}/models"


@pytest.mark.parametrize(
    "override",
    ["a=1", "a=b,c", "~a", "a=/x y/z", "+a={b: 1}", "a=[é]", "a='é'", "a=${oc.env:HOME}/é", "a=choice(1,2)"],
)
def test_what_is_grammar_stays(override):
    assert quoted(override) == override
    assert GRAMMAR.search(override) or override.isascii()


def test_several_values_stay_several():
    assert quoted("a=é,b,c#1") == "a='é',b,'c#1'"


@pytest.mark.parametrize("value", ["/data (1)/models", "[é]", "it's", "a{b"])
def test_what_cannot_be_read_is_named(tmp_path, value):
    ended = run_script("train.py", "experiment=pocket", f"paths.output_dir={tmp_path / 'run'}", f"paths.models={value}")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: paths.models: cannot read {value} (")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_a_script_is_told_so(tmp_path, script):
    own = {"train.py": "experiment=pocket", "eval.py": "samples=1"}
    name = {"train.py": "policy.path", "eval.py": "model"}[script]
    ended = run_script(script, own[script], f"{name}={tmp_path}/nulle part à côté #1")
    assert ended.returncode == 2
    assert f"{tmp_path}/nulle part à côté #1" in ended.stderr
