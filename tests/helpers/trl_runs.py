"""Short runs of TRL's trainers on the pocket policy; a rank of them too: ``python trl_runs.py OUT``."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

before = dict(os.environ)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # noqa: E402

os.environ.clear()
os.environ.update(before)  # TRL has had vLLM say nothing, which processes of other tests would inherit

from oblr.errors import UnmeasuredError  # noqa: E402
from oblr.statistics.observer import GradientStatistics  # noqa: E402
from oblr.statistics.trl import watch  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
TRAINERS: dict[str, tuple[Any, Any]] = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}


def digits(completions: list[str], **_: Any) -> list[float]:
    """The share of a response's characters that are digits."""
    return [sum(character.isdigit() for character in text) / (1 + len(text)) for text in completions]


def trainer(
    folder: Path,
    kind: str = "grpo",
    lora: bool = False,
    reward: Callable[..., list[float]] = digits,
    kernels: str | None = None,
    **settings: Any,
) -> Any:
    """A trainer whose first update is yet to come."""
    path = ROOT / "models" / "pocket"
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    config, cls = TRAINERS[kind]
    sums = [{"prompt": f"{a} + {b} ="} for a in range(3, 9) for b in range(10, 30)]
    own: dict[str, Any] = {
        **{"output_dir": str(folder), "use_cpu": True, "bf16": False, "seed": 3, "learning_rate": 1e-3},
        **{"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 12, "max_steps": 20},
        **{"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "beta": 0.0},
    }
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None
    return cls(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        reward_funcs=[reward],
        args=config(**own | settings),
        train_dataset=Dataset.from_list(sums),
        processing_class=tokenizer,
        peft_config=adapter,
    )


if __name__ == "__main__":
    out = Path(sys.argv[1])
    ends = []
    for path in (None, out / "statistics.jsonl"):
        one = trainer(out, max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2)
        if path is not None:
            watch(one, path)
        one.train()
        ends.append([p.detach().clone() for p in one.model.parameters()])
    if one.accelerator.is_main_process:
        alike = all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
        (out / "alike.json").write_text(json.dumps({"alike": alike, "ranks": one.accelerator.num_processes}))
    rank, ids = one.accelerator.process_index, torch.arange(3, 9).view(2, 3)
    with GradientStatistics(one.model) as statistics:
        one.model(input_ids=ids).logits.log_softmax(-1).amax().backward()
        try:
            statistics.step(reward=[0.0] * (2 + rank))  # too many on the second rank
        except UnmeasuredError as error:
            (out / f"refused-{rank}.txt").write_text(str(error))
