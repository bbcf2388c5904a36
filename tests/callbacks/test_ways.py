"""Whether updates end where they still lead down: what a run logs of it, under whatever optimizer and strategy."""

import lightning as L
import pytest
import torch
from conftest import SMALL, run_script
from taken_steps import make_batch, take_steps

from callbacks import doctor
from callbacks.doctor import Doctor
from oblr.doctor.reading import read
from oblr.record.curves import read_curves
from oblr.schedules.constant import ConstantSchedule


class Exact(L.Callback):
    """The same of whole parameters and gradients, and what the doctor has found."""

    def __init__(self, watched):
        self.watched, self.last, self.pairs = watched, None, []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        trained = [p for p in pl_module.parameters() if p.requires_grad]
        here = torch.cat([p.detach().flatten() for p in trained]).double()
        down = -torch.cat([p.grad.flatten() for p in trained]).double()
        if self.last is not None:
            cosine = torch.cosine_similarity(here - self.last, down, 0).item()
            self.pairs.append((self.watched.ways.onward, cosine))
        self.last = here


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_it_is_the_cosine_of_the_update_with_the_next_descent(tmp_path, monkeypatch, optimizer):
    """With as many projections as numbers."""
    monkeypatch.setattr(doctor, "PROJECTIONS", 4096)
    watched = Doctor()
    exact = Exact(watched)
    settings = {"schedule": ConstantSchedule(1e-3), "bound": 1e3, "optimizer": optimizer}
    take_steps(tmp_path, make_batch(tmp_path, True), steps=3, observers=(watched, exact), **settings)
    found, expected = zip(*exact.pairs, strict=True)
    assert found == pytest.approx(expected, abs=1e-3)
    assert [step.onward for step in watched.steps] == [None, *found]


@pytest.mark.wide
@pytest.mark.parametrize("ranks", [["trainer=single"], ["trainer=fsdp", "trainer.devices=2"]])
def test_a_run_logs_it_and_its_doctor_reads_it(tmp_path, ranks):
    """Shards are parts of one update: their sums are over the ranks."""
    adam = ("optimizer=adamw", "eta0=1e-4", "schedule=constant", "steps=4", "trainer.accelerator=cpu")
    result = run_script("train.py", *SMALL, f"paths.output_dir={tmp_path}", *adam, *ranks)
    assert result.returncode == 0, result.stderr
    steps, values = read_curves(tmp_path)["monitor/onward"]
    assert list(steps) == [2, 3, 4]
    assert all(0 < value < 0.5 for value in values)
    assert [step.onward for step in read(tmp_path)] == [None, *values]
