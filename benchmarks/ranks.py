"""One process or two: the same answer, and what each costs.

    python benchmarks/ranks.py [--quick]

Steps of the pocket policy, tied as it is shipped and with a head of its own, with transformers' engine and with vLLM,
one engine a rank. One process records its rollouts; two ranks sync and sample with engines of their own, which are
checked against the policy, and then train on the recorded rollouts. At every other step all live groups fall to the
second rank. Compared are the norm of each sequence, moments and learning rate at every step, and the parameters after
the last.

Time is that of whole steps over the single process's; every process computes with one thread.
"""

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import torch
from figures import ROOT, Figure, at_most, parser, write
from training import composed

from callbacks.observer import Observer
from oblr.batch.types import RolloutBatch, StepStatistics
from oblr.data.ends import end_tokens
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.step import PolicyModule
from oblr.rollout.datamodule import RolloutDataModule

POCKET = ROOT / "models" / "pocket"
STEPS, PROMPTS, GROUP_SIZE = 5, 16, 4
#: the first step of everything, which is not timed
WARM_UP = 1
CASES = [(tying, engine) for engine in ("hf", "vllm") for tying in ("tied", "untied")]


class Replay(Observer):
    """Gives every run the rollouts of the first one, and keeps what its steps stats.

    Args:
        folder: of the rollouts, ``<step>.pkl`` each; where they are missing they are recorded.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.steps: list[dict[str, torch.Tensor]] = []
        self.seconds: list[dict[str, float]] = []

    def replayed(self, batch: RolloutBatch, step: int, rank: int) -> RolloutBatch:
        path = self.folder / f"{step}.pkl"
        if not path.exists():
            half = len(batch.rollouts) // 2
            rewards = [float((i >= half or step % 2) and i % 2) for i in range(len(batch.rollouts))]
            path.write_bytes(
                pickle.dumps([replace(r, reward=reward) for r, reward in zip(batch.rollouts, rewards, strict=True)])
            )
        share = len(batch.rollouts)
        return replace(batch, rollouts=pickle.loads(path.read_bytes())[rank * share :][:share])

    def on_step(self, trainer: L.Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        moments = stats.moments
        self.steps.append(
            {
                "norms": stats.square_norms.nan_to_num(-1.0),
                "moments": torch.tensor([moments.mean_square, moments.square_mean], dtype=torch.float64),
                "learning rate": torch.tensor([stats.lr], dtype=torch.float64),
            }
        )
        self.seconds.append(policy.clock.reset())


class Data(RolloutDataModule):
    """Samples with this rank's engine, has the policy check that engine, and then trains on the replay."""

    replay: Replay
    policy: PolicyModule

    def next_batch(self) -> RolloutBatch:
        batch = super().next_batch()
        self.policy.check_engine(batch)
        return self.replay.replayed(batch, self.run.current_epoch, self.run.global_rank)


def work(trainer: str, engine: str, model: str, folder: Path) -> None:
    """Train on this rank; the first one writes ``<trainer>.pt``."""
    devices = 1 if trainer == "single" else 2
    cfg = composed(
        [
            *(f"trainer={trainer}", "trainer.accelerator=cpu", f"trainer.devices={devices}", f"steps={STEPS}"),
            *(f"policy.path='{model}'", f"rollout.engine={engine}", "rollout._target_=__main__.Data"),
            *(f"rollout.prompts_per_step={PROMPTS}", f"rollout.group_size={GROUP_SIZE}", "data.held_out.size=8"),
            *("schedule=snr", "schedule.estimator=plug_in", "eta0=1e-2", f"paths.output_dir={folder}"),
        ]
    )
    policy = hydra.utils.instantiate(cfg.policy, _convert_="all")
    tokenizer = load_tokenizer(model)
    data = hydra.utils.instantiate(
        cfg.rollout, tokenizer=tokenizer, end_ids=end_tokens(model, tokenizer), _convert_="all"
    )
    data.weights, data.clock, data.policy, data.replay = policy.weights, policy.clock, policy, Replay(folder)
    run = hydra.utils.instantiate(cfg.trainer, callbacks=[data.replay], logger=False, enable_checkpointing=False)
    run.fit(policy, datamodule=data)
    parameters = torch.cat([weight.flatten() for _, weight in policy.weights()])
    if run.is_global_zero:
        torch.save(
            {"steps": data.replay.steps, "parameters": parameters, "seconds": data.replay.seconds},
            folder / f"{trainer}.pt",
        )


def untied(folder: Path) -> Path:
    """The pocket model with a head of its own."""
    lm = load_model(str(POCKET), "float32")
    lm.config.tie_word_embeddings = False
    head = lm.lm_head.weight.detach()
    lm.lm_head.weight = torch.nn.Parameter(
        head + 0.02 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0))
    )
    lm.save_pretrained(folder)
    load_tokenizer(str(POCKET)).save_pretrained(folder)
    return folder


def results(tying: str, engine: str, trainers: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """What the single process and the other trainers make of the same rollouts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = POCKET if tying == "tied" else untied(folder / "model")
        for trainer in ("single", *trainers):
            command = [sys.executable, __file__, "--work", trainer, engine, str(model), str(folder)]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        return {trainer: torch.load(folder / f"{trainer}.pt") for trainer in ("single", *trainers)}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """``‖found − expected‖/‖expected‖``."""
    return ((found - expected).norm() / expected.norm()).item()


def differences(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Of the step where it is largest."""
    for what in ("norms", "moments", "learning rate"):
        yield what, max(distance(b[what], a[what]) for a, b in zip(one["steps"], other["steps"], strict=True))
    yield "parameters", distance(other["parameters"], one["parameters"])


def worst_norm(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Of a single sequence. Float32 itself leaves it off by as much on one process, the more the surer the policy."""
    pairs = zip(one["steps"], other["steps"], strict=True)
    return max(((b["norms"] - a["norms"]).abs() / a["norms"].abs()).max().item() for a, b in pairs)


def step_seconds(result: dict[str, Any]) -> float:
    return sum(sum(phases.values()) for phases in result["seconds"][WARM_UP:])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.work:
        trainer, engine, model, folder = arguments.work
        return work(trainer, engine, model, Path(folder))
    figures: list[Figure] = []
    for tying, engine in [("tied", "hf")] if arguments.quick else CASES:
        found = results(tying, engine, ("fsdp",) if arguments.quick else ("fsdp", "ddp"))
        one = found.pop("single")
        for trainer, result in found.items():
            case = f"{tying}, {engine}, {trainer} on two ranks"
            for what, value in differences(one, result):
                figures.append(at_most(f"{case}: relative difference of {what}", value, "", 1e-5))
            figures.append(Figure(f"{case}: norm of one sequence, most", worst_norm(one, result), "relative"))
            figures.append(
                Figure(f"{case}: time of a step", step_seconds(result) / step_seconds(one), "of one process")
            )
            sync = sum(phases["sync"] for phases in result["seconds"][WARM_UP:])
            figures.append(Figure(f"{case}: share of the sync", 100 * sync / step_seconds(result), "%"))
    write("ranks-quick" if arguments.quick else "ranks", figures)


if __name__ == "__main__":
    main()
