import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from conftest import ROOT, run_script
from doctored import responses, run

from oblr.doctor import command
from oblr.statistics.log import STATISTICS, append

#: What an environment with torch and transformers alone does not have.
ABSENT = ("lightning", "hydra", "omegaconf", "pydantic", "annotated_types", "rich", "datasets", "vllm", "matplotlib")


@pytest.fixture
def typed(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["oblr-doctor", *map(str, arguments)])
        command.main()
        return capsys.readouterr().out

    return call


def logged(folder, steps):
    for step in steps:
        append(folder / STATISTICS, step)
    return folder


def test_what_the_library_has_logged(typed, tmp_path):
    found = typed(logged(tmp_path, run(prompts=2, size=64, prompt_noise=1.0)))
    assert found.startswith("1. Groups are larger than pays")
    assert "num_generations=8" in found
    assert "rollout." not in found


def test_text_steers_no_terminal(typed, tmp_path):

    def hostile(one, step, place):
        return replace(one, reward=100.0, text="\x1b[2J\u202e") if place == 3 else one

    found = typed(logged(tmp_path, responses(run(), hostile, only=[9])))
    assert r"\x1b[2J\u202e" in found
    assert "\x1b" not in found


def test_bad_input_is_one_line(typed, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        typed(tmp_path / "missing")
    assert end.value.code == 2
    assert re.fullmatch(r"error: run: .*missing is not there \(name .*\)\n", capsys.readouterr().err)


def test_it_needs_torch_alone(tmp_path):
    """Its command, in a Python that finds nothing else of what this program needs."""

    hidden = f"import sys; sys.modules |= dict.fromkeys({ABSENT}); sys.argv[0] = 'oblr-doctor'; "
    script = hidden + "from oblr.doctor.command import main; main()"
    where = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    place = str(logged(tmp_path, run()))
    ended = subprocess.run([sys.executable, "-c", script, place], env=where, capture_output=True, text=True)
    assert ended.stdout.startswith("healthy: nothing found in 32 steps"), ended.stderr


def test_a_run_of_this_program(train, tmp_path):
    """Its end says what the command and the report say."""
    ended = train("steps=3", "~callbacks.evaluation")
    assert ended.returncode == 0, ended.stderr
    found = run_script("doctor.py", str(tmp_path / "run"))
    assert found.returncode == 0, found.stderr
    (line,) = found.stdout.splitlines()
    assert line.startswith("healthy: nothing found in 3 steps; reward ")
    assert f"doctor      {line}" in ended.stdout
    page = (tmp_path / "run" / "report.html").read_text()
    assert f'"doctor":[{json.dumps(line)}]' in page
