"""What a run is told differently from the defaults, at its start."""

import io
import os

from conftest import run_script
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from oblr.commands.changed import changed, changes_table
from oblr.commands.compose import composer, job_config


def changes(*overrides: str):
    with composer() as compose:
        cfg: DictConfig = compose("train", overrides, RunMode.RUN)
        return changed(OmegaConf.to_container(job_config(cfg), resolve=False), "train")


def test_choices_of_groups_and_what_follows_from_them_are_one():
    found = changes("baseline=rloo", "eta0=0.02", "policy.lora.rank=4")
    assert found == {
        "baseline": ("rloo", "gradient_weighted"),
        "eta0": (0.02, 0.01),  # not also schedule.eta0 and policy.schedule.eta0
        "policy.lora.rank": (4, 32),
    }


def test_what_is_added_and_what_is_removed():
    found = changes("~callbacks.evaluation", "+trainer.benchmark=true", "~callbacks.monitors.entropy")
    assert found == {
        "trainer.benchmark": (True, None),
        "callbacks.evaluation": ("removed", None),
        "callbacks.monitors.entropy": ("removed", None),
    }


def test_the_defaults_and_places_are_no_change():
    assert changes() == changes("paths.runs=elsewhere", "name=mine") == {}


def test_a_line_each():
    console = Console(width=100, file=io.StringIO())
    console.print(changes_table({"eta0": (0.02, 0.01), "prompt.template": ("[{prompt}]", None)}))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines == [
        "settings    eta0             0.02        instead of 0.01",
        "            prompt.template  [{prompt}]",
    ]


def test_a_run_says_so_first(tmp_path):
    small = ("rollout.engine=hf", "rollout.prompts_per_step=2", "rollout.group_size=2", "data.held_out.size=2")
    result = run_script("train.py", "experiment=pocket", *small, "steps=1", f"paths.output_dir={tmp_path / 'run'}")
    assert result.returncode == 0, result.stderr
    first, *_ = result.stdout.splitlines()
    assert first.split() == ["settings", "experiment", "pocket"]
    shown = [line.split()[0] for line in result.stdout.partition("rewards  ")[0].splitlines()[1:]]
    planned = [f"planned.{name}" for name in ("prompt", "response")]
    sizes = ["data.held_out.size", "rollout.engine", "rollout.prompts_per_step", "rollout.group_size"]
    assert sorted(shown) == sorted(["baseline", "schedule", "steps", "eta0", *planned, *sizes])
    assert os.path.exists(tmp_path / "run" / "finished.json")
