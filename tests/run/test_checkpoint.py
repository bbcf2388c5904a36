"""Checkpoint folders: whole or absent, whatever happens while they are written or lie on the disk."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, tiny_model
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

from callbacks.checkpoints import Checkpoints
from oblr.errors import CheckpointError, SettingError
from oblr.run import checkpoint
from oblr.run.checkpoint import load, save
from oblr.run.manifest import MANIFEST, Order, by_age, damaged, is_complete, outdated
from oblr.run.randomness import random_state, set_random_state
from oblr.run.resumed import choose_checkpoint


def trained(optimizer, steps=2):
    """A small tied model after some steps, and its optimizer."""
    model = tiny_model(tied=True)
    optimizer = optimizer(model.parameters())
    for seed in range(steps):
        torch.manual_seed(seed)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    return model, optimizer


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_was_saved_comes_back(tmp_path, name):
    model, optimizer = trained(OPTIMIZERS[name])
    save(tmp_path / "a.ckpt", model, optimizer, {"epoch": 3})
    other, fresh = trained(OPTIMIZERS[name], steps=0)
    assert load(tmp_path / "a.ckpt", other, fresh) == {"epoch": 3}
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)
        assert optimizer.state[mine].keys() == fresh.state[its].keys()
        assert all(torch.equal(optimizer.state[mine][key], fresh.state[its][key]) for key in optimizer.state[mine])
    assert other.lm_head.weight is other.model.embed_tokens.weight


def test_a_run_that_goes_on_from_an_earlier_step_saves_the_later_ones_again(tmp_path):
    """The newest is the one that was saved last, not that of the latest step, and no clock has a say."""
    model, optimizer = trained(OPTIMIZERS["sgd"])
    for step in (1, 2, 3):
        save(tmp_path / f"step-{step}.ckpt", model, optimizer, {"epoch": step}, Order(1, step))
    save(tmp_path / "step-2.ckpt", model, optimizer, {"epoch": "again"}, Order(2, 2))
    for age, step in enumerate((3, 1, 2)):
        os.utime(tmp_path / f"step-{step}.ckpt" / "manifest.json", (1000 - age, 1000 - age))
    assert [path.stem for path in by_age(tmp_path)] == ["step-1", "step-3", "step-2"]
    assert load(tmp_path / "step-2.ckpt", model, optimizer) == {"epoch": "again"}


def test_an_optimizer_that_has_not_stepped_stays_so(tmp_path):
    model, optimizer = trained(OPTIMIZERS["adamw"], steps=0)
    save(tmp_path / "a.ckpt", model, optimizer, {})
    assert not optimizer.state
    other, fresh = trained(OPTIMIZERS["adamw"], steps=0)
    load(tmp_path / "a.ckpt", other, fresh)
    assert not fresh.state


def test_random_numbers_go_on():
    import random

    import numpy as np

    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    state = random_state()
    first = draw()
    assert draw() != first
    set_random_state(state)
    assert draw() == first


def test_what_the_user_keeps_beside_the_runs_own_checkpoints_stays(tmp_path):
    """And of those the newest complete ones."""
    model, optimizer = trained(OPTIMIZERS["sgd"])
    trainer = SimpleNamespace(
        current_epoch=0,
        max_epochs=3,
        should_stop=False,
        is_global_zero=True,
        loggers=[],
        save_checkpoint=lambda path, storage_options: save(path, model, optimizer, {}, storage_options),
    )
    callback = Checkpoints(str(tmp_path), every=1, keep=2)
    callback.on_train_epoch_end(trainer, None)
    shutil.copytree(tmp_path / "step-00001.ckpt", tmp_path / "best.ckpt")
    (tmp_path / "note.txt").write_text("mine")
    (tmp_path / "step-00002.ckpt.part").mkdir()  # a run was killed here
    for trainer.current_epoch in (1, 2):
        callback.on_train_epoch_end(trainer, None)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.ckpt", "note.txt", "step-00002.ckpt", "step-00003.ckpt"]


def test_checkpoints_come_after_every_so_many_steps_and_the_last(tmp_path):
    saved = []
    trainer = SimpleNamespace(max_epochs=7, should_stop=False, is_global_zero=False, loggers=[])
    trainer.save_checkpoint = lambda path, storage_options: saved.append((path.name, storage_options.step))
    for trainer.current_epoch in range(7):
        Checkpoints(str(tmp_path), every=3).on_train_epoch_end(trainer, None)
    assert saved == [(f"step-{step:05d}.ckpt", step) for step in (3, 6, 7)]


def scalars(folder, tag):
    """(step, value) pairs in TensorBoard's files."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_what_was_logged_before_a_checkpoint_is_written_before_it(tmp_path, monkeypatch):
    """Whoever goes on from it does not log these steps again, so a kill must not lose them; the disk is slow."""
    logger, found = TensorBoardLogger(tmp_path, name="", version=""), []
    trainer = SimpleNamespace(current_epoch=0, max_epochs=1, should_stop=False, is_global_zero=True, loggers=[logger])
    trainer.save_checkpoint = lambda path, storage_options: found.append(scalars(tmp_path, "tag"))
    write = RecordWriter.write
    monkeypatch.setattr(RecordWriter, "write", lambda self, data: (time.sleep(0.05), write(self, data)))
    for step in range(8):
        logger.experiment.add_scalar("tag", 1.0, step)
    Checkpoints(str(tmp_path / "checkpoints"), every=1).on_train_epoch_end(trainer, None)
    assert found == [list(enumerate([1.0] * 8))]


@pytest.fixture
def two(tmp_path):
    """A folder with two checkpoints, and the newer one."""
    model, optimizer = trained(OPTIMIZERS["adamw"])
    for name in ("a", "b"):
        save(tmp_path / f"{name}.ckpt", model, optimizer, {})
    return tmp_path, tmp_path / "b.ckpt"


@pytest.mark.parametrize("name", ["__0_0.distcp", "meta.pt", ".metadata", "manifest.json"])
def test_a_truncated_checkpoint_is_passed_over(two, name):
    folder, newer = two
    assert by_age(folder)[-1] == newer
    file = newer / name
    file.write_bytes(file.read_bytes()[:-100])
    assert not is_complete(newer)
    assert by_age(folder) == [folder / "a.ckpt"]


@pytest.mark.parametrize("name", ["__0_0.distcp", "meta.pt", ".metadata"])
def test_a_changed_byte_is_found(two, name):
    _, newer = two
    file = newer / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    model, optimizer = trained(OPTIMIZERS["adamw"], steps=0)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(SettingError, match=rf"^ckpt_path: .* is damaged: {name}"):
        load(newer, model, optimizer)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_no_half_checkpoint_is_left(two, monkeypatch):
    """Whatever fails first, the write or what describes it."""
    folder, newer = two
    model, optimizer = trained(OPTIMIZERS["adamw"])
    for target in ("torch.save", "torch.distributed.checkpoint.save"):
        with monkeypatch.context() as patch:
            patch.setattr(target, lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(CheckpointError, match=r"c\.ckpt could not be written: .*No space left"):
                save(folder / "c.ckpt", model, optimizer, {})
        assert by_age(folder)[-1] == newer
        assert {path.name for path in folder.iterdir()} == {"a.ckpt", "b.ckpt"}


FILL = """
import sys, torch
from pathlib import Path
sys.path[:0] = "tests", "tests/helpers", "tests/run"
from test_checkpoint import OPTIMIZERS, trained
from oblr.run.checkpoint import load, save
from oblr.run.manifest import by_age
from oblr.errors import CheckpointError
folder = Path(sys.argv[1])
model, optimizer = trained(OPTIMIZERS["adamw"])
save(folder / "a.ckpt", model, optimizer, {})
try:
    for k in range(9):
        save(folder / f"b{k}.ckpt", model, optimizer, {})
except CheckpointError as error:
    print(error)
whole = by_age(folder)
load(whole[-1], model, optimizer)
print(len(whole), sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in whole))
"""


@pytest.mark.wide
def test_a_full_disk_leaves_earlier_checkpoints(tmp_path):
    """A real one, of 2 MiB, in a mount namespace of its own."""
    command = f"mount -t tmpfs -o size=2m tmpfs {tmp_path} && exec {shlex.quote(sys.executable)} -c '{FILL}' {tmp_path}"
    result = subprocess.run(["unshare", "-rm", "sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    error, left = result.stdout.splitlines()
    assert "No space left on device" in error
    assert "make room" in error
    count, nothing_else = left.split()
    assert int(count) >= 1
    assert nothing_else == "True"


def test_the_manifest_names_every_file(two):
    _, newer = two
    manifest = json.loads((newer / "manifest.json").read_text())
    assert manifest["files"].keys() == {path.name for path in newer.iterdir()} - {"manifest.json"}


def line(folder, *places):
    """Checkpoints of these attempts and steps, by the clock in the opposite order."""
    model, optimizer = trained(OPTIMIZERS["sgd"])
    for age, (attempt, step) in enumerate(places):
        path = folder / f"step-{step:05d}.ckpt"
        save(path, model, optimizer, {}, Order(attempt, step))
        os.utime(path / MANIFEST, (1000 - age, 1000 - age))


def names(paths):
    return sorted(path.name for path in paths)


def test_a_run_that_has_gone_back_keeps_the_later_steps_until_it_is_there_again(tmp_path):
    line(tmp_path, (1, 2), (1, 4), (1, 6), (2, 3))
    assert names(outdated(tmp_path, keep=2)) == []
    assert names(outdated(tmp_path, keep=1)) == ["step-00002.ckpt"]
    line(tmp_path, (2, 5))
    assert names(outdated(tmp_path, keep=2)) == ["step-00002.ckpt", "step-00004.ckpt"]
    line(tmp_path, (2, 6), (2, 7))
    assert names(outdated(tmp_path, keep=2)) == [f"step-0000{step}.ckpt" for step in (2, 3, 4, 5)]


def test_a_damaged_newest_checkpoint(tmp_path):
    """``auto`` goes on from the one before it and says so; ``last`` names that one; nothing earlier, nothing to do."""
    line(tmp_path / "checkpoints", (1, 2), (1, 4))
    first, newest = by_age(tmp_path / "checkpoints")
    content = bytearray((newest / "__0_0.distcp").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "__0_0.distcp").write_bytes(content)
    said = []
    assert choose_checkpoint("auto", tmp_path, said.append) == first
    (told,) = said
    assert f"{newest} is damaged: __0_0.distcp" in told
    assert str(first) in told
    for asked in ("last", str(newest)):
        with pytest.raises(SettingError, match=rf"is damaged: __0_0.distcp.*ckpt_path={first}"):
            choose_checkpoint(asked, tmp_path)
    (newest / MANIFEST).write_text("[")
    with pytest.raises(SettingError, match=rf"not a complete checkpoint: manifest.json.*ckpt_path={first}"):
        choose_checkpoint("last", tmp_path)
    (first / "meta.pt").unlink()
    with pytest.raises(SettingError, match="no earlier one beside it is whole"):
        choose_checkpoint("auto", tmp_path)


def test_what_is_not_read_as_it_was_written_is_no_checkpoint(tmp_path, monkeypatch):
    """A disk that gives back something else: the earlier ones stay, the new one goes."""
    model, optimizer = trained(OPTIMIZERS["sgd"])
    save(tmp_path / "a.ckpt", model, optimizer, {})
    real, seen = checkpoint.digest, {}

    def odd(path):
        seen[path.name] = seen.get(path.name, 0) + 1
        return real(path) | ({"sha256": "0"} if path.name == "meta.pt" and seen[path.name] == 2 else {})

    monkeypatch.setattr(checkpoint, "digest", odd)
    with pytest.raises(CheckpointError, match=r"b\.ckpt could not be written.*look after the disk"):
        save(tmp_path / "b.ckpt", model, optimizer, {})
    assert names(tmp_path.iterdir()) == ["a.ckpt"]


def test_files_are_on_the_disk_before_they_have_their_names(tmp_path, monkeypatch):
    """All files of a checkpoint and its folder, and after it has got its name, the folder that it lies in."""
    model, optimizer = trained(OPTIMIZERS["sgd"])
    done, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(Path(os.readlink(f"/proc/self/fd/{fd}"))), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("named"), replace(a, b)))
    (tmp_path / "a").mkdir()
    save(tmp_path / "a" / "b.ckpt", model, optimizer, {})
    at = len(done) - 1 - done[::-1].index("named")
    part = tmp_path / "a" / "b.ckpt.part"
    files = [part / path.name for path in (tmp_path / "a" / "b.ckpt").iterdir()]
    last = {path: place for place, path in enumerate(done[:at])}
    assert max(last[file] for file in files) < last[part]  # names in a folder are on the disk with the folder
    assert done[at + 1 :] == [tmp_path / "a"]


def test_reading_digests_again_follows_a_change(two):
    _, newer = two
    assert damaged(newer) == []
    content = bytearray((newer / "meta.pt").read_bytes())
    content[100] ^= 1
    (newer / "meta.pt").write_bytes(content)
    assert damaged(newer) == ["meta.pt"]
