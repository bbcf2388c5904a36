"""What does it cost TRL to be watched: time and memory of an update with ``oblr.statistics.trl`` and without?

    python benchmarks/watched.py [--quick]

An update is TRL's own: GRPO's loss with its fused head, backward, clipping, AdamW, of 2,048 tokens in one micro-batch,
a quarter of them the prompt's. The policy is a random Qwen3 of four layers, tied, float32, on one thread; a GPU has
8,192 tokens, widths of models that are trained there, and autocast to bfloat16. In turns, nine rounds; the median of
the paired ratios with its 95 % interval. Memory is the peak of a process, over what it was before its first update.
``--quick``: one round of one size.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from figures import Figure, asked_to_be_quick, at_most, median_ratio, write
from gpu_device import DEVICE, GPU, seconds
from grown import POCKET
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from oblr.statistics.observer import GradientStatistics

#: Tokens of an update, and lengths of its sequences.
TOKENS, LENGTHS = 8192 if GPU else 2048, (128, 512)
WIDTHS, VOCABULARY = (1024, 2560) if GPU else (256, 512), 32768 if GPU else 8192


def updater(folder: Path, width: int, length: int) -> Any:
    """A function that makes one update, watched by the statistics it is given, if any."""
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 128, "head_dim": 64}
    shape = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 4, "vocab_size": VOCABULARY}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads, tie_word_embeddings=True))
    tokenizer = AutoTokenizer.from_pretrained(POCKET)
    tokenizer.pad_token = tokenizer.eos_token
    count, prompt = TOKENS // length, length // 4
    config = GRPOConfig(
        str(folder), per_device_train_batch_size=count, num_generations=4, use_cpu=not GPU, bf16=GPU, report_to=[]
    )
    trainer = GRPOTrainer(
        model,
        [lambda completions, **_: [0.0]],
        config,
        Dataset.from_list([{"prompt": "1"}] * 16),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    inputs = {
        "prompt_ids": torch.randint(5, VOCABULARY, (count, prompt)),
        "prompt_mask": torch.ones(count, prompt, dtype=torch.long),
        "completion_ids": torch.randint(5, VOCABULARY, (count, length - prompt)),
        "completion_mask": torch.ones(count, length - prompt, dtype=torch.long),
        "advantages": torch.randn(count),
        "num_items_in_batch": torch.tensor(float(count * (length - prompt))),
    }
    inputs = {name: tensor.to(DEVICE) for name, tensor in inputs.items()}
    model.train()

    def update(statistics: GradientStatistics | None) -> None:
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if statistics is not None:
            statistics.step([i // 4 for i in range(count)])
        optimizer.step()
        optimizer.zero_grad()

    return update, model


def watch(model: Qwen3ForCausalLM) -> GradientStatistics:
    statistics = GradientStatistics(model)
    statistics.fused_head()
    return statistics


def ratios(folder: Path, width: int, length: int, rounds: int) -> Iterator[float]:
    """Times of updates with and without, in turns, after one of each."""
    update, model = updater(folder, width, length)
    for number in range(rounds + 1):
        took = {}
        for watched in (True, False) if number % 2 else (False, True):
            statistics = watch(model) if watched else None
            took[watched] = seconds(lambda given=statistics: update(given))
            if statistics is not None:
                statistics.close()
        if number:
            yield took[True] / took[False]


def peak(folder: Path, width: int, length: int, watched: bool) -> None:
    """Print the MiB that three updates take more than what was there before, of this process or its GPU."""
    update, model = updater(folder, width, length)
    statistics = watch(model) if watched else None
    before = torch.cuda.memory_allocated() if GPU else resident()
    for _ in range(3):
        update(statistics)
    after = torch.cuda.max_memory_allocated() if GPU else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps((after - before) / 2**20))


def resident() -> int:
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(quick: bool) -> Iterator[Figure]:
    for width in WIDTHS[: 1 if quick else None]:
        for length in LENGTHS[: 1 if quick else None]:
            name = f"hidden size {width}, {TOKENS // length} sequences of {length} tokens"
            with tempfile.TemporaryDirectory() as folder:
                found = list(ratios(Path(folder), width, length, 1 if quick else 9))
            yield median_ratio(f"{name}: time of an update, watched", found, "× plain", most=1.25)
            peaks = [
                json.loads(
                    subprocess.run(
                        [sys.executable, __file__, "--peak", str(width), str(length), str(int(watched))],
                        **{"check": True, "capture_output": True, "text": True},
                    ).stdout.splitlines()[-1]
                )
                for watched in (True, False)
            ]
            yield at_most(f"{name}: memory of updates, watched", peaks[0] / peaks[1], "× plain", 1.15)


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        width, length, watched = map(int, sys.argv[2:])
        with tempfile.TemporaryDirectory() as folder:
            return peak(Path(folder), width, length, bool(watched))
    quick = asked_to_be_quick(__doc__)
    torch.set_num_threads(1)
    write("watched-quick" if quick else "watched", list(measure(quick)))


if __name__ == "__main__":
    main()
