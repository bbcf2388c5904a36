"""Every choice of every group goes through a short run of the real command line, among choices of the other groups."""

import math

import pytest
from conftest import ROOT, run_script

from callbacks.summary import read_curves

STEPS = 2
SMALL = (
    "experiment=pocket",
    "rollout.engine=hf",
    "rollout.prompts_per_step=4",
    "data.held_out.size=4",
    "~callbacks.evaluation",
    "~callbacks.summary",
    f"steps={STEPS}",
)


def choices(group):
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def check(folder):
    """A run that learnt something, in numbers."""
    curves = read_curves(folder / "tensorboard")
    for tag in ("train/reward", "train/lr", "train/entropy", "snr/M1", "snr/M2", "snr/noise"):
        assert curves[tag][0] == list(range(STEPS)), tag
        assert all(math.isfinite(value) for value in curves[tag][1]), tag
    assert max(curves["snr/M1"][1]) > 0
    assert min(curves["train/lr"][1]) >= 0
    assert (folder / "policy" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("group", "others"),
    [
        ("baseline", ["loss=policy_gradient", "schedule=snr", "gradnorm=exact", "kl=none"]),
        ("loss", ["baseline=adaptive", "schedule=linear", "gradnorm=sketch", "kl=k2", "policy.updates_per_batch=2"]),
        ("kl", ["baseline=otb", "loss=gspo", "schedule=cosine", "gradnorm=logit"]),
        ("schedule", ["baseline=value", "loss=cispo", "gradnorm=exact", "kl=k1", "policy.updates_per_batch=2"]),
        ("gradnorm", ["baseline=shrinkage", "baseline.weighted=true", "loss=ppo_clip", "schedule=constant", "kl=k3"]),
    ],
)
def test_every_choice_runs(group, others, tmp_path):
    names = choices(group)
    folder = f"{tmp_path}/${{hydra:runtime.choices.{group}}}"
    result = run_script("train.py", "-m", *SMALL, *others, f"{group}={','.join(names)}", f"paths.output_dir={folder}")
    assert result.returncode == 0, result.stderr
    for name in names:
        check(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("seed_baseline", ["gradient_weighted", "rloo"]),
        ("seed_schedule", [f"{kind}-{rate}" for kind in ("constant", "snr") for rate in (0.001, 0.005, 0.01)]),
        ("seed_weights", ["exact", "uniform"]),
    ],
)
def test_seed_experiments_run_all_their_arms(name, arms, tmp_path):
    small = (override for override in SMALL if not override.startswith("experiment"))
    result = run_script("train.py", f"experiment={name}", *small, f"paths.runs={tmp_path}")
    assert result.returncode == 0, result.stderr
    written = {path.name for path in tmp_path.iterdir()} - {"multirun.yaml"}
    assert written == {f"{arm}-seed1" for arm in arms}
    assert not (ROOT / "multirun.yaml").exists()
    for arm in arms:
        check(tmp_path / f"{arm}-seed1")
