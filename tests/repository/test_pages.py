"""README and pages: links lead somewhere, commands compose, code runs, and first questions have short answers."""

import re
import shlex
import sys
import tomllib
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from conftest import PAGES, ROOT
from hydra.types import RunMode
from pasted import code, commands

from oblr import errors
from oblr.commands.compose import composer, job_config
from oblr.record.curves import read_curves
from oblr.settings.check import check_settings

README = PAGES[0].read_text()
ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
#: Scripts by what they are called in a clone, and installed.
COMPOSED = {"src/train.py": "train", "oblr-train": "train", "src/eval.py": "eval", "oblr-eval": "eval"}
SWEPT = {"src/sweep.py", "oblr-sweep"}
#: Where a page names what a reader has and the clone has not: what is checked in its place.
THEIRS = {"model=last": "model=A", "model=[A,B]": "model=A", "ckpt_path=last": "ckpt_path=A"}


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def section(path: Path, anchor: str) -> str:
    """What stands below the title of that anchor, up to the next one; without comments."""
    text = re.sub(r"<!--.*?-->", "", path.read_text(), flags=re.DOTALL)
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    (title,) = (title for title in named if re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") == anchor)
    return named[title]


def test_errors_lead_to_pages_that_are_there():
    ends = [error.page for error in vars(errors).values() if isinstance(error, type) and hasattr(error, "page")]
    assert errors.RankError.page in ends
    assert {*errors.PAGES.values(), errors.REFERENCE, errors.FAULTS, *ends} <= {path.name for path in PAGES}
    settings = [errors.page(setting) for setting in ("data.columns.answer", "rollout.engine", "rollout.group_size")]
    assert settings == ["data.md", "machines.md", errors.REFERENCE]


@pytest.mark.parametrize("group", sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir()))
def test_every_group_of_settings_has_a_page_that_speaks_of_it(group):
    named = errors.page(group)
    if named == errors.REFERENCE:
        assert group in ("paths", "policy", "rollout")  # of many things; some of their settings have pages
    assert group in (ROOT / "docs" / named).read_text().lower()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        if found.suffix == ".md" and anchor:
            assert anchor in anchors(found), target


def test_the_readme_leads_to_every_page_and_is_short():
    assert len(re.sub(r"<!--.*?-->\n?", "", README, flags=re.DOTALL).splitlines()) <= 120  # as it is read
    assert {f"docs/{path.name}" for path in PAGES[1:]} <= set(re.findall(r"\]\(([^)#\s]+)", README))


def test_five_questions_have_short_answers_one_click_away():
    answers = re.findall(r"^\| .*\? \| \[.*\]\(([^#)]+)#([^)]+)\) \|$", README, flags=re.MULTILINE)
    assert len(answers) == 5
    for page, anchor in answers:
        words = len(section(ROOT / page, anchor).split())
        assert 40 < words < 200, f"{page}#{anchor} has {words} words"


def test_equations_point_at_functions_that_are_there():
    pattern = r"^\| .* \| \[`([\w.]+)`\]\(\.\./src/([\w./]+)\.py\) \|$"
    rows = re.findall(pattern, (ROOT / "docs" / "method.md").read_text(), flags=re.MULTILINE)
    assert len(rows) >= 12
    for name, path in rows:
        module = import_module(path.replace("/", "."))
        assert callable(getter := attrgetter(name)(module)) or isinstance(getter, property), (name, path)


def typed() -> list[str]:
    """What can be composed; test_code_of_ones_own_runs has what needs configuration of the reader's."""
    first = r"((PYTHONPATH=\S+ )?python |make |sbatch |oblr-)"
    return sorted({line for line in commands(PAGES, first) if "--config-dir" not in line})


def overrides(words: list[str]) -> list[str]:
    return [THEIRS.get(word, word) for word in words if "=" in word and not word.startswith("--")]


def check(script: str, words: list[str]) -> None:
    with composer() as compose:
        cfg = job_config(compose(script, words, RunMode.RUN))
        check_settings(cfg, script)


def check_sweep(words: list[str]) -> None:
    with composer() as compose:
        check_settings(
            job_config(compose("train", [word for word in words if "," not in word or "[" in word], RunMode.RUN)),
            "train",
        )


@pytest.mark.parametrize("command", typed())
def test_commands_are_taken(command):
    """As far as can be told without a GPU, a hub, or the reader's own files: composed, and every setting checked."""
    words = [word for word in shlex.split(command) if not word.startswith("PYTHONPATH=")]
    program, *rest = words[1:] if words[0] == "python" else words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    elif program == "sbatch":
        (file,) = (word for word in rest if word.startswith("slurm/"))
        assert (ROOT / file).exists()
        if "sweep" in file:
            return check_sweep(overrides(rest))
        check("train", [word for word in overrides(rest) if not word.startswith("serving=")])  # which that file takes
    elif program in COMPOSED:
        check(COMPOSED[program], overrides(rest))
    elif program in SWEPT:
        check_sweep(overrides(rest))
    elif program.startswith("oblr-"):
        assert program in ENTRIES
    else:
        assert (ROOT / program).exists()
        flags = {word for word in rest if word.startswith("--")}
        assert all(flag in (ROOT / program).read_text() for flag in flags)


def test_code_of_ones_own_runs(tmp_path, train, monkeypatch):
    """The files of docs/own.md, as the page shows them, in one short run."""
    shown = code(ROOT / "docs" / "own.md")
    assert len(shown) == 5
    for name, text in shown:
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'mine'}:{':'.join(sys.path)}")
    own = ["baseline=short", "data=doubles"]
    done = train(
        *own, "reward=python", "reward.path=my_reward.reward", "steps=1", "--config-dir", str(tmp_path / "mine/conf")
    )
    assert done.returncode == 0, done.stderr
    assert "ShortBaseline" in (tmp_path / "run" / "config.yaml").read_text()
    curves = read_curves(tmp_path / "run")
    assert not any("accuracy" in tag for tag in curves)
    means, lows, highs = (curves[f"eval/sampled_{end}"][1] for end in ("reward", "low", "high"))
    assert all(low < mean < high for low, mean, high in zip(lows, means, highs, strict=True))
    assert {"my_reward.reward", "my_problems.Doubles"} <= set((tmp_path / "run" / "config.yaml").read_text().split())


def test_the_threat_model_names_every_attack_and_no_other():
    """docs/security.md links each promise to what tries to break it; an attack without a promise has no place."""
    named = re.findall(r'\(\.\./tests/attacks/(\w+\.py) "(\w+)"\)', (ROOT / "docs" / "security.md").read_text())
    there = [
        (path.name, name)
        for path in sorted((ROOT / "tests" / "attacks").glob("test_*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text(), flags=re.MULTILINE)
    ]
    assert sorted(set(named)) == sorted(there)
