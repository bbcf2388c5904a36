import pytest
import torch
from cases import wide
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import nn

from oblr.commands import compose, launch
from oblr.errors import SettingError
from oblr.run.checkpoint import save


def checkpoint(folder):
    (folder / "checkpoints").mkdir(parents=True)
    layer = nn.Linear(2, 2)
    save(folder / "checkpoints" / "step-00001.ckpt", layer, torch.optim.SGD(layer.parameters()), {})


def test_a_run_gets_a_folder_of_its_own():
    assert compose.run_folder("runs/x", None).startswith("runs/x/20")


def test_last_is_the_run_whose_checkpoint_was_written_last(tmp_path):
    checkpoint(tmp_path / "b")
    checkpoint(tmp_path / "a")
    (tmp_path / "c").mkdir()  # started, and never saved
    assert compose.run_folder(str(tmp_path), "last") == str(tmp_path / "a")


def test_nothing_to_resume(tmp_path):
    with pytest.raises(SettingError, match=r"^ckpt_path: "):
        compose.run_folder(str(tmp_path), "last")


def test_processes_of_one_run_share_its_folder(monkeypatch):
    monkeypatch.setenv(compose.RUN_FOLDER, "runs/x/shared")
    assert compose.run_folder("runs/x", None) == "runs/x/shared"


def test_faults_of_the_program_are_not_made_into_one_line():
    with pytest.raises(ZeroDivisionError), launch.one_line_errors():
        raise ZeroDivisionError
    with pytest.raises(InstantiationException), launch.one_line_errors():
        instantiate({"_target_": "operator.truediv", "_args_": [1, 0]})


def test_what_a_constructor_is_not_given_is_the_users_to_mend(capfd):
    with pytest.raises(SystemExit), launch.one_line_errors():
        instantiate({"_target_": "operator.truediv", "_args_": [1]})
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "truediv expected 2 arguments" in line


@pytest.mark.parametrize(
    "name", ["baseline", "rollout.group_size", *wide("callbacks.progress.every", "data", "policy.path")]
)
def test_a_name_with_a_letter_lost_or_changed_is_answered_with_the_name(refused, name):
    """Groups, sections and settings alike; set, or taken away."""
    for place, shape in ((1, "{}=3"), (len(name) - 2, "~{}")):
        typo = name[:place] + name[place + 1 :]
        done = refused(shape.format(typo))
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: {typo}: there is no such setting (did you mean {name}?)"), line


def test_what_is_like_no_name_is_told_the_names_there_are(refused):
    assert "rollout has engine, engines" in refused("rollout.xyzzy=1").stderr
    assert "(it belongs to callbacks=benchmarks)" in refused("benchmarks=[gsm8k]").stderr
    assert "(did you mean rloo? " in refused("baseline=rlo").stderr
