import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from composing import composed
from doctored import run
from hydra.utils import instantiate
from omegaconf import OmegaConf
from step_statistics import Policy, Run, make_statistics

from callbacks.doctor import record
from callbacks.rollouts import RolloutLog
from oblr.batch.types import RolloutBatch
from oblr.doctor import reading
from oblr.doctor.reading import ours, read
from oblr.errors import SettingError
from oblr.policy.method import takes_plain_steps
from oblr.statistics.log import STATISTICS, Response, StepRecord, append


def logged(folder, steps):
    for step in steps:
        append(folder / STATISTICS, step)
    return folder


def test_what_the_library_has_logged(tmp_path):
    steps = run(4)
    assert read(logged(tmp_path, steps)) == steps
    assert read(tmp_path / STATISTICS) == steps
    assert not ours(tmp_path)


def test_a_line_that_is_not_whole_yet(tmp_path):
    steps = run(3)
    with (logged(tmp_path, steps) / STATISTICS).open("a") as file:
        file.write('{"step": 4')
    assert read(tmp_path) == steps


def test_a_step_without_a_gradient_is_left_out(tmp_path):
    steps = run(3)
    logged(tmp_path, [steps[0], replace(steps[1], gradient_square=math.nan), steps[2]])
    assert [step.step for step in read(tmp_path)] == [1, 3]


def test_the_last_steps_of_a_long_run(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST", 2)
    assert [step.step for step in read(logged(tmp_path, run(4)))] == [3, 4]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("missing", None, "is not there"), ("file", "hello\n", "no file of statistics"), ("file", "", "no step")],
)
def test_what_is_no_run(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SettingError, match=said):
        read(tmp_path / name)


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(SettingError, match="has neither"):
        read(tmp_path)


def of_run(folder, optimizer="{_target_: torch.optim.SGD}"):
    """A run of this program of two steps, without a run; its only rank has both of the groups that are live."""
    found = make_statistics()
    stats = make_statistics(
        batch=RolloutBatch(found.batch.rollouts, 2, 1),
        **{
            name: getattr(found, name)[:2]
            for name in ("problems", "scores", "rewards", "lengths", "finished", "live", "square_norms")
        },
        **{
            name: getattr(found, name)[:2]
            for name in ("reward_weights", "advantages", "group_squares", "log_ratios", "entropies")
        },
    )
    stats.finished = stats.batch.finished  # which rows are told by
    stats.coefficients = stats.ratios * stats.advantages.abs() / 2
    (folder / "config.yaml").write_text(f"eta0: 0.3\noptimizer: {optimizer}\n")
    log, trainer = RolloutLog(str(folder / "rollouts")), Run()
    log.on_train_start(trainer, None)
    for step in range(2):
        trainer.current_epoch = step
        log.on_step(trainer, Policy(), stats)
        numbers = {"snr/M1": stats.moments.mean_square, "train/lr": stats.lr, "train/entropy": stats.entropy}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step + 1, **numbers}) + "\n")
    return stats


def test_a_run_of_this_program_is_read_as_its_callback_saw_it(tmp_path):
    stats = of_run(tmp_path)
    assert ours(tmp_path)
    steps = read(tmp_path)
    assert [step.step for step in steps] == [1, 2]
    expected = record(stats, 1, plain=True, alike=True, eta0=0.3)
    assert replace(steps[0], responses=[]) == replace(expected, responses=[])
    for one, other in zip(steps[0].responses, expected.responses, strict=True):
        assert asdict(one) == pytest.approx(asdict(other))


@pytest.mark.parametrize("told", ["", "+optimizer.momentum=0.9", "+optimizer.weight_decay=0.1", "optimizer=adamw"])
def test_a_run_and_its_folder_agree_on_whether_its_steps_are_plain(tmp_path, told):
    cfg = composed("experiment=pocket", *told.split()).optimizer
    of_run(tmp_path, json.dumps(OmegaConf.to_container(cfg)))
    assert {step.plain for step in read(tmp_path)} == {takes_plain_steps(instantiate(cfg))} == {not told}


def test_the_parts_of_the_gradient(tmp_path):
    stats = of_run(tmp_path)
    parts = torch.tensor([one.gradient_square for one in read(tmp_path)[0].responses], dtype=torch.float64).view(2, 2)
    assert torch.allclose(parts, (stats.coefficients / 2).square() * stats.square_norms)


def test_updates_that_are_not_minus_the_gradient(tmp_path):
    of_run(tmp_path, "{_target_: torch.optim.AdamW}")
    assert not read(tmp_path)[0].plain


def test_a_damaged_run(tmp_path):
    of_run(tmp_path)
    next((tmp_path / "rollouts").glob("*.gz")).write_bytes(b"no gzip")
    with pytest.raises(SettingError, match="cannot be read"):
        read(tmp_path)


def test_no_more_is_read_than_there_is_room_for(tmp_path, monkeypatch):
    of_run(tmp_path)
    monkeypatch.setattr(reading, "ROOM", 1)
    assert [step.step for step in read(tmp_path)] == [2]


def test_of_steps_that_were_taken_again_the_last_are_read(tmp_path):
    """A run that went back from step 3 to 2, and before it another one."""
    for step, rate in ((1, 0.1), (2, 0.1), (1, 0.2), (2, 0.2), (3, 0.2), (2, 0.3)):
        append(tmp_path / "statistics.jsonl", StepRecord(step, 1.0, [1.0], [Response(0)], learning_rate=rate))
    assert [(one.step, one.learning_rate) for one in read(tmp_path)] == [(1, 0.2), (2, 0.3)]
