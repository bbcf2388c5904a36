"""How long is one RL step, beside a step of TRL's GRPOTrainer?

    pip install trl==1.16.0
    python benchmarks/step.py [--quick]

A step is N = 16 prompts × G = 8 responses of up to 64 tokens, and one update with those 128 sequences, in float32. It
lasts from the end of the step before to its own end, whatever happens in between.

Ours is ``src/train.py experiment=pocket`` without the held-out evaluation: exact norms, gradient-weighted baseline, SNR
schedule, all other callbacks; once with vLLM, once with transformers' generation. TRL generates with transformers. Its
GRPO loss has no reference model, its trainer no gradient checkpointing, clipping, logging or saving, and it takes its
sequences in micro-batches of 32, the fastest of 128, 64 and 32. Weights, prompts, reward, temperature, end token,
optimizer (SGD) and η₀ are those of the configuration that our run wrote down. Groups of equal rewards cost us no
update; the share of the others, the live ones, is reported.

The policy is the pocket policy with every layer twice as wide, 3 M parameters, widened so that it computes the same
function: it answers like a policy that can learn. Every run is a process of its own; the competitors take turns, nine
rounds, and the median over rounds of the ratio of median steps is reported with its 95 % interval. ``--quick``: one
short round, N = 4.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from figures import ROOT, Figure, at_most, median_ratio, parser, write
from grown import POCKET, grow
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from oblr.baselines.base import live_groups
from oblr.problem import Completion

WARM_UP, TRL_BATCH = 2, 32


@dataclass(frozen=True)
class Run:
    """The steps after the warm-up.

    Attributes:
        seconds: of each step.  phases: part of each step that a phase takes, s.
        length, reward: means over the responses.  live: share of groups whose rewards differ.
        moved: ``‖Δθ‖/‖θ‖`` of the whole run.
    """

    seconds: list[float]
    phases: dict[str, list[float]]
    length: float
    reward: float
    live: float
    moved: float


def widen(folder: Path) -> None:
    """Write the pocket policy with twice the units: of the same function."""
    config = AutoConfig.from_pretrained(POCKET)
    for size in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        setattr(config, size, 2 * getattr(config, size))
    grow(config, folder, torch.float32)


def moved(before: Path, after: Path) -> float:
    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    change = sum((new[name] - weight).square().sum() for name, weight in old.items())
    return (change / sum(weight.square().sum() for weight in old.values())).sqrt().item()


def differences(starts: Sequence[float], ends: Sequence[float]) -> list[float]:
    return [end - start for start, end in zip(starts, ends, strict=True)]


def ours(engine: str, policy: Path, folder: Path, prompts: int, steps: int) -> Run:
    overrides = (
        "experiment=pocket",
        *("baseline=gradient_weighted", "schedule=snr", "eta0=1e-2"),
        "~callbacks.evaluation",
        f"rollout.engine={engine}",
        f"rollout.prompts_per_step={prompts}",
        f"policy.path={policy}",
        f"steps={WARM_UP + steps}",
        f"paths.output_dir={folder}",
    )
    subprocess.run([sys.executable, ROOT / "src" / "train.py", *overrides], check=True, stdout=subprocess.DEVNULL)
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()

    def curve(tag: str) -> list[float]:
        return [event.value for event in events.Scalars(tag)][WARM_UP:]

    ends = [event.wall_time for event in events.Scalars("time/step")]  # written when all callbacks are done
    seconds = differences(ends[WARM_UP - 1 : -1], ends[WARM_UP:])
    phases = {phase: curve(f"time/{phase}") for phase in ("sync", "check", "rollout", "reward", "update")}
    phases["other"] = differences([sum(parts) for parts in zip(*phases.values(), strict=True)], seconds)
    length, reward, live = map(statistics.mean, map(curve, ("rollout/length", "train/reward", "train/live_groups")))
    return Run(seconds, phases, length, reward, live, moved(policy, folder / "policy"))


def trl(like: Path, policy: Path) -> Run:
    """TRL's steps, with what the run in folder ``like`` was given."""
    command = [sys.executable, __file__, "--trl", like]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    starts, sampled, ends = found["ends"][WARM_UP - 1 : -1], found["sampled"][WARM_UP:], found["ends"][WARM_UP:]
    length, reward, live = (statistics.mean(found[name][WARM_UP:]) for name in ("lengths", "rewards", "live"))
    phases = {"rollout": differences(starts, sampled)}
    return Run(differences(starts, ends), phases, length, reward, live, moved(policy, like / "trl"))


def train_with_trl(like: Path) -> None:
    """Take TRL's steps in this process; print when each had sampled and ended, and means of what it sampled."""
    from datasets import Dataset
    from hydra.utils import instantiate
    from omegaconf import OmegaConf
    from trl import GRPOConfig, GRPOTrainer

    cfg = OmegaConf.load(like / "config.yaml")
    tokenizer = AutoTokenizer.from_pretrained(cfg.policy.path, padding_side="left")
    data = instantiate(cfg.rollout, tokenizer=tokenizer, end_ids=[tokenizer.eos_token_id], _convert_="all")
    problems = [problem for problem, _ in islice(data.drawing.problems(0), cfg.steps * data.drawing.count)]
    found: dict[str, list[float]] = {name: [] for name in ("sampled", "ends", "lengths", "rewards", "live")}

    def reward(completions: list[str], completion_ids: list[list[int]], index: list[int], **_: object) -> list[float]:
        found["sampled"].append(time.perf_counter())
        rewards = [
            data.reward(problems[i], text, Completion(ids, [], finished=ids[-1] in data.sampling.end_ids))
            for i, text, ids in zip(index, completions, completion_ids, strict=True)
        ]
        found["lengths"].append(statistics.mean(map(len, completion_ids)))
        found["rewards"].append(statistics.mean(rewards))
        found["live"].append(live_groups(torch.tensor(rewards).view(-1, data.sampling.n)).float().mean().item())
        return rewards

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            found["ends"].append(time.perf_counter())

    args = GRPOConfig(
        output_dir=str(like / "trl"),
        loss_type="grpo",
        beta=0.0,
        num_generations=data.sampling.n,
        max_completion_length=data.sampling.max_new_tokens,
        temperature=data.sampling.temperature,
        per_device_train_batch_size=TRL_BATCH,
        gradient_accumulation_steps=data.drawing.count * data.sampling.n // TRL_BATCH,
        shuffle_dataset=False,
        max_steps=cfg.steps,
        optim="sgd",
        learning_rate=cfg.eta0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        gradient_checkpointing=False,
        bf16=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=cfg.seed,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(cfg.policy.path, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [p.prompt for p in problems], "index": list(range(len(problems)))}),
        callbacks=[Clock()],
        args=args,
    )
    trainer.train()
    trainer.model.save_pretrained(like / "trl")
    print(json.dumps(found))


def figures(rounds: list[dict[str, Run]]) -> list[Figure]:
    def over(engine: str) -> list[float]:
        return [statistics.median(runs["trl"].seconds) / statistics.median(runs[engine].seconds) for runs in rounds]

    def share(name: str, *phases: str) -> float:
        """Of the step, median over all steps, %."""
        return statistics.median(
            100 * sum(parts) / whole
            for runs in rounds
            for whole, *parts in zip(runs[name].seconds, *(runs[name].phases[p] for p in phases), strict=True)
        )

    measured = [
        median_ratio("TRL's step over ours with vLLM", over("vllm"), "×", least=1.5),
        median_ratio("TRL's step over ours with transformers' generation", over("hf"), "×"),
        *(
            Figure(f"vllm: time, {' and '.join(phases)}", share("vllm", *phases), "% of the step")
            for phases in (("sync", "check"), ("rollout",), ("reward",), ("update",), ("other",))
        ),
        at_most("vllm: time, sync, check and other", share("vllm", "sync", "check", "other"), "% of the step", 10),
        *(Figure(f"{name}: time, rollout", share(name, "rollout"), "% of the step") for name in ("hf", "trl")),
    ]
    for name in ("vllm", "hf", "trl"):
        runs = [turn[name] for turn in rounds]
        measured += [
            Figure(f"{name}: response length", statistics.mean(run.length for run in runs), "tokens"),
            Figure(f"{name}: mean reward", statistics.mean(run.reward for run in runs), ""),
            Figure(f"{name}: live groups", 100 * statistics.mean(run.live for run in runs), "%"),
            Figure(f"{name}: change of the parameters", 100 * statistics.mean(run.moved for run in runs), "%"),
        ]
    return measured


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--trl", type=Path)
    args = options.parse_args()
    if args.trl:
        return train_with_trl(args.trl)
    rounds, prompts, steps = (1, 4, 3) if args.quick else (9, 16, 8)
    measured = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        policy = folder / "policy"
        widen(policy)
        for turn in range(rounds):
            runs = {name: ours(name, policy, folder / f"{name}-{turn}", prompts, steps) for name in ("vllm", "hf")}
            measured.append({**runs, "trl": trl(folder / f"vllm-{turn}", policy)})
    write("step-quick" if args.quick else "step", figures(measured))


if __name__ == "__main__":
    main()
