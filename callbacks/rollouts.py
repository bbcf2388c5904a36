"""Every response that a run has sampled to learn from, to read later."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from callbacks.observer import Observer
from oblr.batch.types import COLUMNS, RolloutBatch, StepStatistics
from oblr.kinds import Positive
from oblr.policy.step import PolicyModule
from oblr.record.rollouts import step_of
from oblr.run.disk import write_whole
from oblr.run.responses import compressed, verdict
from oblr.statistics.peaks import peaks

log = logging.getLogger(__name__)


class RolloutLog(Observer):
    """Writes ``step-<t>-rank<r>.jsonl.gz``: a line for each response that a rank has sampled in a step.

    A file is there whole or not at all. When a resumed run has taken its first step, it takes back
    those of all steps that it takes again. Where the files of a rank grow beyond its share of ``limit_mib``, the oldest
    go.

    Args:
        dirpath: folder of the files.
        limit_mib: what those of all ranks may take, MiB.
    """

    def __init__(self, dirpath: str, limit_mib: Positive = 1024):
        self.folder, self.limit = Path(dirpath), limit_mib * 2**20
        self.warned, self.begun = False, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.folder.mkdir(exist_ok=True)
        self.renumber(trainer.global_rank)

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        step, rank = trainer.current_epoch + 1, trainer.global_rank
        for path in [] if self.begun else self.files(rank):
            if step_of(path) >= step:
                path.unlink()
        self.begun = True
        write_whole(self.folder / f"step-{step:06d}-rank{rank}.jsonl.gz", compressed(rows(step, policy, stats)))
        self.forget(rank, self.limit / trainer.world_size)

    on_refused = on_step  # what cannot be learned from is what one wants to read

    def forget(self, rank: int, limit: float) -> None:
        """Delete the oldest files of a rank until the others take ``limit`` bytes at most."""
        files = self.files(rank)
        held = sum(path.stat().st_size for path in files)
        while held > limit and len(files) > 1:
            held -= files[0].stat().st_size
            files.pop(0).unlink()
            if not self.warned:
                log.warning(f"the oldest rollouts are deleted, since all take more than {self.limit / 2**20:g} MiB")
                self.warned = True

    def renumber(self, rank: int) -> None:
        """Give files that count the steps from 0, as they once did, the names of today."""
        files = self.files(rank)
        for path in reversed(files if files and step_of(files[0]) == 0 else []):
            path.rename(self.folder / f"step-{step_of(path) + 1:06d}-rank{rank}.jsonl.gz")

    def files(self, rank: int) -> list[Path]:
        """Of a rank, oldest first."""
        return sorted(self.folder.glob(f"step-*-rank{rank}.jsonl.gz"))


def rows(step: int, policy: PolicyModule, stats: StepStatistics) -> Iterator[dict[str, Any]]:
    """What is known of each response of this rank; None where a number was not measured or is not finite.

    Its numbers are those of :func:`oblr.record.rollouts.columns`.
    """
    batch = stats.batch
    found = {one.key: getattr(stats, name) for name, one in COLUMNS.items() if one.key}
    found |= {
        "share": shares(policy, stats),
        "baseline": stats.rewards - stats.advantages,
        "ratio": stats.ratios,
    }
    size = batch.group_size
    top = peaks_of(batch) if alike(policy) else [(math.nan, math.nan)] * len(batch.rollouts)
    of_each = {key: x if x.ndim == 2 else x[:, None].expand(-1, size) for key, x in found.items()}
    columns = {key: x.tolist() for key, x in of_each.items()}  # at once: a number at a time takes longer

    for i, rollout in enumerate(batch.rollouts):
        group, response = stats.first + i // size, i % size
        own = {name: column[group][response] for name, column in columns.items()}
        own["logprob"] = sum(rollout.completion.logprobs)
        own["peak"], own["peak_share"] = top[i]
        numbers = {name: value if math.isfinite(value) else None for name, value in own.items()}
        yield {
            "step": step,
            "weight_version": batch.weight_version,
            **({"weight_versions": spans} if (spans := rollout.completion.versions) else {}),
            "group": group,
            "response": response,
            "problem": rollout.problem.id,
            "prompt": rollout.problem.prompt,
            "answer": rollout.problem.answer,
            "text": rollout.text,
            "verdict": verdict(rollout.outcome, rollout.completion.finished),
            "reward_parts": rollout.reward_parts,
            **numbers,
        }


def alike(policy: PolicyModule) -> bool:
    """Whether all tokens of a response have one coefficient in the gradient."""
    return not (policy.per_token or policy.loss.per_token)


def peaks_of(batch: RolloutBatch) -> list[tuple[int, float]]:
    """``peak`` and ``peak_share`` of this rank's responses, by what the engine says of tokens of one coefficient."""
    logprobs = [torch.tensor(rollout.completion.logprobs, dtype=torch.float64) for rollout in batch.rollouts]
    slopes = pad_sequence([torch.ones_like(one) for one in logprobs], batch_first=True)
    found = peaks(pad_sequence(logprobs, batch_first=True), slopes)
    return list(zip(found.places.tolist(), found.shares.tolist(), strict=True))


def shares(policy: PolicyModule, stats: StepStatistics) -> Tensor:
    """Share of each response in the step's update, float64 [N, G]: they sum to 1 over the responses of all ranks.

    ``‖c_i ∇θ log π(o_i|q)‖ / Σ_j ‖c_j ∇θ log π(o_j|q)‖`` with the coefficients that the update has had: how long a
    response's part is, beside all parts. NaN in groups without a gradient, and everywhere where norms of live groups
    were not measured, tokens have coefficients of their own, or nothing moved.
    """
    norms = stats.square_norms.sqrt()
    # What an observer has measured for a baseline that needs no norms is without a loss's factors of tokens.
    plain = policy.baseline.needs_norms or not policy.loss.per_token
    known = plain and not policy.per_token and bool(norms[stats.live].isfinite().all())
    parts = stats.coefficients * norms
    total = parts[stats.live].sum()
    return parts / total if known and total > 0 else torch.full_like(parts, math.nan)
