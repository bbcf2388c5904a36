"""Steps of a tiny policy on rollouts that it has drawn itself, by Lightning and the real training step."""

from pathlib import Path
from unittest.mock import patch

import lightning as L
import torch
from conftest import drawn_by, make_rollouts, tiny_model

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.types import RolloutBatch
from oblr.gradnorm.measure import GradNorms
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.policy.step import PolicyModule
from oblr.schedules.constant import ConstantSchedule

GROUP_SIZE = 4
REWARDS = [1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 0.5, 0, 0, 1]  # the third group is dead
LENGTHS = [3, 9, 1, 4, 12, 2, 5, 5, 6, 6, 6, 6, 1, 30, 2, 8]
TEMPERATURE = 0.8


class OneBatch:
    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 1

    def __iter__(self):
        yield self.batch


class KeepReports(L.Callback):
    def __init__(self):
        self.statistics = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pl_module.gradient = {name: p.grad.clone() for name, p in pl_module.scorer.lm.named_parameters()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.statistics.append(outputs["statistics"])


def make_batch(folder: Path, tied: bool, drift: float = 0.02, lengths=LENGTHS, rewards=REWARDS) -> RolloutBatch:
    """Rollouts whose behaviour policy is the saved model, up to ``drift`` nats a token."""
    lm = tiny_model(tied)
    lm.save_pretrained(folder)
    return RolloutBatch(drawn_by(lm, make_rollouts(lengths, rewards), TEMPERATURE, drift), GROUP_SIZE, 1)


def take_steps(
    folder,
    batch,
    *,
    steps=1,
    gradnorm=None,
    baseline=None,
    loss=None,
    schedule=None,
    token_budget=60,
    optimizer=torch.optim.SGD,
    bound=1.0,
    bound_p99=None,
    precision="32-true",
    observers=(),
    **settings,
):
    """The policy after that many epochs on one batch or a loader, with its last ``gradient``, and their statistics.

    ``settings`` are the policy's others.
    """
    policy = PolicyModule(
        path=str(folder),
        dtype="float32",
        gradnorm=gradnorm or GradNorms(passes="two"),
        baseline=baseline or GradientWeightedBaseline(),
        loss=loss or PolicyGradientLoss(),
        schedule=schedule or ConstantSchedule(0.0),
        optimizer=lambda parameters: optimizer(parameters, lr=0.0),
        temperature=TEMPERATURE,
        token_budget=token_budget,
        logprob_gap_mean=bound,
        logprob_gap_p99=bound if bound_p99 is None else bound_p99,
        **settings,
    )
    keep = KeepReports()
    trainer = L.Trainer(
        max_epochs=steps,
        accelerator="cpu",
        precision=precision,
        callbacks=[*observers, keep],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with patch("oblr.policy.step.check"):  # tests/policy/test_selfcheck.py tries it, on these models too
        trainer.fit(policy, batch if isinstance(batch, OneBatch) else OneBatch(batch))
    return policy, keep.statistics
