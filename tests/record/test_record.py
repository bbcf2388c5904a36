"""What a run keeps of its own, whatever logger it has: every number, and every response."""

import gzip
import json
import logging

import pytest
import torch
from kept_responses import read_rollouts
from step_statistics import NAN, Policy, Run, make_statistics

from callbacks.rollouts import RolloutLog, rows
from oblr.baselines.rloo import RLOOBaseline
from oblr.record import rollouts
from oblr.record.curves import METRICS, read_curves
from oblr.record.logger import RunRecord
from oblr.record.rollouts import files_of_steps


def test_curves_of_what_was_logged(tmp_path):
    record = RunRecord(str(tmp_path))
    record.log_metrics({"a": 1.0, "b": NAN}, 1)
    record.log_metrics({"c": 5.0}, 0)
    record.log_metrics({"a": 0.1 + 0.2, "b": float("inf")}, 2)
    assert read_curves(tmp_path) == {"a": ([1, 2], [1.0, 0.1 + 0.2]), "c": ([0], [5.0])}


def test_steps_that_are_taken_again_are_logged_once(tmp_path):
    """Also where a kill has cut the last line. The evaluation after the steps that are kept comes again."""
    record = RunRecord(str(tmp_path))
    for done in range(4):
        record.log_metrics({"eval/best": float(done)}, done)
        record.log_metrics({"train/lr": done + 1.0}, done + 1)
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 5, "train/lr"')
    assert read_curves(tmp_path)["train/lr"][0] == [1, 2, 3, 4]
    record.go_back(2)
    record.log_metrics({"eval/best": 2.0}, 2)
    record.log_metrics({"train/lr": -3.0}, 3)
    assert read_curves(tmp_path) == {
        "train/lr": ([1, 2, 3], [1.0, 2.0, -3.0]),
        "eval/best": ([0, 1, 2], [0.0, 1.0, 2.0]),
    }
    written = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["step"] for line in written if "train/lr" in line] == [1, 2, 3]
    assert [line["step"] for line in written if "eval/best" in line] == [0, 1, 2]


def test_a_run_of_an_earlier_version_is_read_and_goes_on_with_its_steps_from_1(tmp_path):
    """It counted steps from 0 in its files, and evaluations as today."""
    record, log, trainer = RunRecord(str(tmp_path)), RolloutLog(str(tmp_path / "rollouts")), Run()
    (tmp_path / "rollouts").mkdir()
    for step in range(3):
        record.log_metrics({"eval/best": float(step)}, step)
        record.log_metrics({"train/lr": step + 1.0}, step)
        name = f"step-{step:06d}-rank{trainer.global_rank}.jsonl.gz"
        (tmp_path / "rollouts" / name).write_bytes(gzip.compress(f'{{"group": {step}, "response": 0}}\n'.encode()))
    assert read_curves(tmp_path) == {
        "train/lr": ([1, 2, 3], [1.0, 2.0, 3.0]),
        "eval/best": ([0, 1, 2], [0.0, 1.0, 2.0]),
    }
    assert [read_rollouts(tmp_path / "rollouts", step)[0]["group"] for step in (1, 2, 3)] == [0, 1, 2]
    trainer.current_epoch = 2
    record.go_back(2)
    log.on_train_start(trainer, None)
    assert read_curves(tmp_path) == {"train/lr": ([1, 2], [1.0, 2.0]), "eval/best": ([0, 1], [0.0, 1.0])}
    assert [read_rollouts(tmp_path / "rollouts", step)[0]["group"] for step in (1, 2)] == [0, 1]
    log.on_step(trainer, Policy(), make_statistics())
    assert list(files_of_steps(tmp_path / "rollouts")) == [1, 2, 3]


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_kept_of_a_response(first):
    """Its own numbers, on each rank: of the third response weight 9 and advantage −1/2, in a step of six."""
    stats = make_statistics(first)
    kept = {(row["group"], row["response"]): row for row in rows(7, Policy(), stats)}
    assert list(kept) == [(first, 0), (first, 1), (first + 1, 0), (first + 1, 1)]
    row = kept[1, 0]
    rollout = stats.batch.rollouts[2 * (1 - first)]
    assert row["text"] == rollout.text
    assert row["prompt"] == rollout.problem.prompt
    assert row["reward"] == rollout.reward
    assert (row["step"], row["tokens"], row["square_norm"], row["weight"], row["ratio"]) == (7, 1, 9, 9, 1)
    assert (row["advantage"], row["baseline"]) == (-0.5, 0.5)
    assert row["share"] == pytest.approx(0.25 * 3 / (1 + 4 + 0.75 + 0.25))
    assert row["group_square"] == 4
    assert (row["peak"], row["peak_share"]) == (0, 1)  # its only token
    assert json.loads(json.dumps(row)) == row
    assert {one.key for one in rollouts.columns()} <= row.keys()  # what a page says of a row is there


def test_what_was_not_measured_is_none():
    last = list(rows(0, Policy(), make_statistics(first=1)))[-1]
    assert not last["live"]
    assert last["square_norm"] is last["weight"] is last["ratio"] is last["share"] is None


def test_shares_are_of_the_whole_step():
    """They sum to 1 over the responses of all ranks; what an observer has measured for another baseline counts too."""
    for policy in (Policy(), Policy("uniform")):
        found = {
            (row["group"], row["response"]): row["share"]
            for first in (0, 1)
            for row in rows(1, policy, make_statistics(first))
        }
        assert sum(share for share in found.values() if share is not None) == pytest.approx(1)
        assert found[0, 1] == pytest.approx(4 / 6)


@pytest.mark.parametrize("unknown", ["norms", "tokens", "factors of tokens", "update"])
def test_no_share_is_told_where_it_is_not_known(unknown):
    changes = {
        "norms": {"square_norms": torch.tensor([[4.0, 16], [NAN, NAN], [NAN, NAN]], dtype=torch.float64)},
        "update": {"coefficients": torch.zeros(3, 2, dtype=torch.float64)},
    }
    policy = Policy(per_token=unknown == "factors of tokens")
    policy.per_token = unknown == "tokens"
    if unknown == "factors of tokens":
        policy.baseline = RLOOBaseline()
    found = list(rows(1, policy, make_statistics(**changes.get(unknown, {}))))
    assert {row["share"] for row in found} == {None}
    assert ({row["peak"] for row in found} == {None}) == ("tokens" in unknown)


def test_a_refused_step_can_be_read(tmp_path):
    """Also a reward that is no number, which JSON has no word for."""
    log, scores = RolloutLog(str(tmp_path)), make_statistics().scores.clone()
    scores[0, 0] = NAN
    log.on_train_batch_end(Run(), Policy(), {"statistics": make_statistics(scores=scores, refused=True)}, None, 0)
    assert [row["reward"] for row in read_rollouts(tmp_path, 1)] == [None, 0, 0, 1]


def test_files_of_steps_that_are_taken_again_go(tmp_path):
    log = RolloutLog(str(tmp_path / "rollouts"))
    trainer = Run()
    log.on_train_start(trainer, None)
    for trainer.current_epoch in range(3):
        log.on_step(trainer, Policy(), make_statistics(first=1))
    other = tmp_path / "rollouts" / "step-000003-rank0.jsonl.gz"
    other.write_bytes(gzip.compress(b'{"group": 0, "response": 0}\n'))
    assert list(files_of_steps(tmp_path / "rollouts")) == [1, 2, 3]
    assert [row["group"] for row in read_rollouts(tmp_path / "rollouts", 3)] == [0, 1, 1, 2, 2]
    trainer.current_epoch = 1
    again = RolloutLog(str(tmp_path / "rollouts"))
    again.on_train_start(trainer, None)
    assert list(files_of_steps(tmp_path / "rollouts")) == [1, 2, 3]  # the run may yet fail before its first step
    again.on_step(trainer, Policy(), make_statistics(first=1))
    assert list(files_of_steps(tmp_path / "rollouts")) == [1, 2, 3]
    assert len(read_rollouts(tmp_path / "rollouts", 3)) == 1  # of the other rank, which looks after its own


def test_the_oldest_go_where_there_are_too_many(tmp_path, caplog):
    log = RolloutLog(str(tmp_path), limit_mib=1)
    trainer = Run()
    log.on_step(trainer, Policy(), make_statistics())
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    log.limit = 2 * 3.5 * size  # of two ranks
    with caplog.at_level(logging.WARNING):
        for trainer.current_epoch in range(1, 6):
            log.on_step(trainer, Policy(), make_statistics())
    assert list(files_of_steps(tmp_path)) == [4, 5, 6]
    assert len(caplog.records) == 1


def test_any_text_is_kept_as_it_is(tmp_path):
    text = "<script>\u202e\ud800\n" + "x" * 10**6
    stats = make_statistics()
    rollout = stats.batch.rollouts[0]
    object.__setattr__(rollout, "text", text)
    log = RolloutLog(str(tmp_path))
    log.on_step(Run(), Policy(), stats)
    assert read_rollouts(tmp_path, 1)[0]["text"] == text
    assert torch.equal(stats.batch.rewards, make_statistics().batch.rewards)
