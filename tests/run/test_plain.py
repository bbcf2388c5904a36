"""What is shown of other people's text, and what is written of secrets."""

import pytest
from omegaconf import OmegaConf

from oblr.commands.compose import register_resolvers
from oblr.commands.written import as_yaml, know_secrets, written
from oblr.run import secrets
from oblr.run.plain import LONGEST, paragraph, plain, verbatim
from oblr.run.secrets import MASK, forgotten, is_secret, masked, masked_overrides


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(secrets, "_known", {})


@pytest.mark.parametrize(
    "character", ["\x1b", "\x9b", "\r", "\n", "\x00", "\u202e", "\u2028", "\u200b", "\ud800", "\x7f"]
)
def test_what_is_no_text_is_written_out(character):
    shown = plain(f"a{character}b")
    assert shown.isprintable()
    assert shown.startswith("a\\")
    assert shown.endswith("b")


def test_text_stays_as_it_is():
    text = "η₀ = 0.1, “quoted”, 日本語, 👍, \\n"
    assert plain(text) == verbatim(text) == text
    assert verbatim("a\n\tb") == "a\n\tb"
    assert len(plain("x" * 10**6)) < LONGEST + 50
    assert paragraph("Error: a\nb\n  c\x1b\n") == "Error: a\n    b\n  c\\x1b\n"


@pytest.mark.parametrize(
    "name", ["logger.token", "hf_token", "WANDB_API_KEY", "db.password", "a.client-secret", "MY.PWD"]
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["policy.token_budget", "rollout.max_new_tokens", "policy.tokenizer", "data.columns.key", "seed", "monkeys"]
)
def test_names_of_anything_else(name):
    assert not is_secret(name)


def test_what_is_written_of_a_configuration(monkeypatch):
    """References stay, secrets that were typed are masked wherever they stand, and all else is resolved."""
    monkeypatch.setenv("SOME_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("PLACE", "/scratch")
    register_resolvers()
    cfg = OmegaConf.create(
        {
            "seed": 1,
            "twice": "${seed}",
            "place": "${oc.env:PLACE}/runs",
            "steps": "${oc.decode:${oc.env:STEPS,3}}",
            "logger": {"token": "${oc.env:SOME_TOKEN}", "password": "swordfish", "url": "http://me:swordfish@host/"},
            "header": "Bearer ${logger.token}",
            "columns": {"key": "id"},
        }
    )
    know_secrets(cfg)
    found = written(cfg)
    assert found["twice"] == 1
    assert found["place"] == "${oc.env:PLACE}/runs"
    assert found["logger"] == {"token": "${oc.env:SOME_TOKEN}", "password": MASK, "url": f"http://{MASK}@host/"}
    assert found["header"] == "Bearer ${oc.env:SOME_TOKEN}"
    assert found["columns"] == {"key": "id"}
    assert (cfg.logger.token, cfg.logger.password, cfg.steps) == ("hf_abcdefgh", "swordfish", 3)
    assert "swordfish" not in as_yaml(written(cfg))
    assert plain("refused: hf_abcdefgh, swordfish") == f"refused: ${{oc.env:SOME_TOKEN}}, {MASK}"
    assert forgotten(found) == ["logger.password", "logger.url"]


def test_what_is_written_of_a_command_line():
    typed = ["train.py", "+logger.token=hf_abcdefgh", "x.api_key='k'", "seed=1", "a.token=${oc.env:T}", "~b.token"]
    written_down = masked_overrides([*typed, "logger={token:hf_abcdefgh}"])
    expected = ["train.py", f"+logger.token={MASK}", f"x.api_key={MASK}", "seed=1", "a.token=${oc.env:T}", "~b.token"]
    assert written_down == [*expected, f"logger={{token:{MASK}}}"]
    assert masked({"a": [{"token": "hf_xyzxyz"}], "n": 3, "token": None}) == {
        "a": [{"token": MASK}],
        "n": 3,
        "token": None,
    }
