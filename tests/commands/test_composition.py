"""Every choice of every group goes through a short run of the real command line, among choices of the other groups."""

import math

import pytest
from cases import wide
from conftest import ROOT, run_script

from oblr.record.curves import read_curves

STEPS = 2
SMALL = (
    "experiment=pocket",
    "rollout.engine=hf",
    "rollout.prompts_per_step=4",
    "rollout.max_new_tokens=24",
    *("data.held_out.size=4", "reward=exact"),
    "~callbacks.evaluation",
    "~callbacks.summary",
    f"steps={STEPS}",
)


def choices(group):
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def check(folder, steps=STEPS):
    """A run that learnt something, in numbers."""
    curves = read_curves(folder)
    for tag in ("train/reward", "train/lr", "train/entropy", "snr/M1", "snr/M2", "snr/noise"):
        assert curves[tag][0] == list(range(1, steps + 1)), tag
        assert all(math.isfinite(value) for value in curves[tag][1]), tag
    assert max(curves["snr/M1"][1]) > 0
    assert min(curves["train/lr"][1]) >= 0
    assert (folder / "policy" / "model.safetensors").exists()


GROUPS = ("baseline", "loss", "kl", "schedule", "gradnorm")


def rows():
    """As many as the largest group has choices. Each group goes round its own and begins elsewhere every time, so that
    its choices meet others'; each loss makes one update of a batch, and then two."""
    found = {group: choices(group) for group in GROUPS}
    for row in range(max(map(len, found.values()))):
        rounds = {group: row // len(names) for group, names in found.items()}
        starts = {group: place * rounds[group] for place, group in enumerate(GROUPS)}
        yield [
            *(f"{group}={names[(row + starts[group]) % len(names)]}" for group, names in found.items()),
            f"policy.updates_per_batch={1 + rounds['loss']}",
        ]


ROWS = list(rows())
WEIGHTED = ["baseline.prior=step", "loss=ppo_clip", "kl=k3"]


@pytest.mark.parametrize("overrides", [*ROWS[:1], *wide(*ROWS[1:], WEIGHTED)], ids=" ".join)
def test_every_choice_runs(overrides, tmp_path):
    result = run_script("train.py", *SMALL, *overrides, f"paths.output_dir={tmp_path}")
    assert result.returncode == 0, result.stderr
    check(tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("seed_weights", ["exact", "uniform"]),
        ("seed_baseline", ["gradient_weighted", "rloo"]),
        ("seed_schedule", [f"{kind}-{rate}" for kind in ("constant", "snr") for rate in (0.001, 0.005, 0.01)]),
    ],
)
def test_seed_experiments_run_all_their_arms(name, arms, tmp_path):
    small = (override for override in SMALL if not override.startswith("experiment"))
    result = run_script("train.py", f"experiment={name}", *small, "steps=1", f"paths.runs={tmp_path}")
    assert result.returncode == 0, result.stderr
    written = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert (tmp_path / "report.html").exists()
    assert written == {f"{arm}-seed1" for arm in arms}
    assert not (ROOT / "multirun.yaml").exists()
    for arm in arms:
        check(tmp_path / f"{arm}-seed1", steps=1)
