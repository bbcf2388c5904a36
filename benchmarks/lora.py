"""Low-rank adapters beside the training of all weights: time, memory, exactness, and whether they learn.

    python benchmarks/lora.py [--quick] [--parts cost exactness learning rounding]

- **Cost** of an update and AdamW's step, on a 30 M-parameter policy: adapters of rank 32 on all linear layers but the
  head, or all weights; plain, or with exact norms in one pass. All take turns; the median over rounds of the ratio of
  times is reported with its 95 % interval. Memory is the growth of a process that takes two such steps, its weights
  apart: gradients, moments, and what the passes leave behind.
- **Exactness**: norms and the gradient against one backward a sequence.
- **Learning**: ``src/train.py experiment=pocket`` under vLLM, which gets merged weights: held-out accuracy before and
  after. Adapters are of rank 8, and AdamW's rate for them is not tuned; all weights learn as the experiment has it.
- **Rounding**: an engine in bfloat16 gets the sum rounded, the policy adds up what it has rounded apart. How far apart
  that brings their log-probabilities, beside the training of all weights, where both round the same ones.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from figures import Figure, at_least, at_most, median_ratio, parser, write
from gradnorm import GROUP_SIZE, SEQUENCES, coefficients, model, peak_memory, rollouts, take_turns
from safetensors.torch import load_file
from training import typed

from oblr.batch.packing import pack
from oblr.gradnorm.measure import GradNorms
from oblr.policy.adapter import LoRA, adapters
from oblr.policy.model import PolicyModel

RANK, ALPHA = 32, 64.0
ADAPTED = (
    "policy.adapter=lora",
    "policy.lora.rank=8",
    "policy.lora.alpha=16",
    "optimizer=adamw",
    "schedule=noise_linear",
    "eta0=2e-3",
)
#: as experiments in bfloat16 have it
BFLOAT16 = (
    *("trainer.precision=bf16-mixed", "loss.ratio=token", "loss.truncate=2"),
    *("policy.logprob_gap_mean=0.1", "policy.logprob_gap_p99=0.5"),
)


def policy(adapted: bool) -> PolicyModel:
    """Its B are not zero, as after some steps."""
    lm = model()
    if adapted:
        LoRA(RANK, ALPHA, "all-linear", 0).attach(lm)
        generator = torch.Generator().manual_seed(0)
        for name, p in adapters(lm).items():
            p.data += ("lora_B" in name) * 0.02 * torch.randn(p.shape, generator=generator)
    return PolicyModel(lm, 1.0)


def step(adapted: bool, exact: bool, length: int) -> Callable[[], None]:
    policy_model, packed = policy(adapted), pack(rollouts([length] * SEQUENCES))
    trained = [p for p in policy_model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6)

    def update() -> None:
        optimizer.zero_grad()
        if exact:
            with GradNorms("exact", "one").measure(policy_model, policy_model.lm, [packed], GROUP_SIZE) as measured:
                measured.backward(coefficients(measured.square_norms))
        else:
            policy_model(packed).logprobs.sum().backward()
        optimizer.step()

    return update


KINDS = {
    f"{trained}, {norms}": partial(step, trained == "adapters", norms == "exact norms")
    for trained in ("all weights", "adapters")
    for norms in ("plain", "exact norms")
}


def grown(kind: str, length: int) -> float:
    """KiB by which two steps make a process of their own grow."""
    command = [sys.executable, __file__, "--memory", kind, str(length)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def cost(length: int, rounds: int) -> list[Figure]:
    ratios = take_turns({name: make(length) for name, make in KINDS.items()}, rounds)
    size = {name: grown(name, length) for name in KINDS}
    label, figures = f"T={length}", []
    for norms in ("plain", "exact norms"):
        ours, whole = f"adapters, {norms}", f"all weights, {norms}"
        name = f"{label}: {norms}: time of a step with adapters"
        figures.append(median_ratio(name, ratios(ours, whole), "× all weights"))
        name = f"{label}: {norms}: memory besides the weights, with adapters"
        figures.append(Figure(name, size[ours] / size[whole], "× all weights"))
    for trained in ("all weights", "adapters"):
        pair = ratios(f"{trained}, exact norms", f"{trained}, plain")
        figures.append(median_ratio(f"{label}: {trained}: time of a step with exact norms", pair, "× plain"))
    return figures


def exactness(length: int) -> list[Figure]:
    policy_model, batch = policy(adapted=True), rollouts([length] * SEQUENCES)
    trained = [p for p in policy_model.parameters() if p.requires_grad]
    oracle = []
    for rollout in batch:
        policy_model.zero_grad()
        policy_model(pack([rollout])).logprobs.sum().backward()
        oracle.append(torch.cat([p.grad.double().flatten() for p in trained]))
    weights = torch.linspace(-1, 1.3, SEQUENCES)
    expected = sum(c * gradient for c, gradient in zip(weights.double(), oracle, strict=True))
    figures = []
    for passes in ("one", "two"):
        policy_model.zero_grad()
        with GradNorms("exact", passes).measure(policy_model, policy_model.lm, [pack(batch)], GROUP_SIZE) as measured:
            measured.backward(weights)
        error = (measured.square_norms / torch.stack([gradient.square().sum() for gradient in oracle]) - 1).abs().max()
        found = torch.cat([p.grad.double().flatten() for p in trained])
        label = f"T={length}, adapters: relative"
        figures.append(at_most(f"{label} error of n_i, exact, {passes} pass(es)", error.item(), "", 1e-5))
        off = ((found - expected).norm() / expected.norm()).item()
        figures.append(at_most(f"{label} difference of the gradient, {passes} pass(es)", off, "", 1e-5))
    return figures


def learning(steps: int, seeds: Sequence[int]) -> list[Figure]:
    figures = []
    for name, settings in (("adapters", ADAPTED), ("all weights", ())):
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                curves = typed(Path(folder) / "run", *settings, f"steps={steps}", f"seed={seed}")
                if name == "adapters" and seed == seeds[0]:
                    own = load_file(Path(folder) / "run" / "policy" / "adapter" / "adapter_model.safetensors")
                    whole = load_file(Path(folder) / "run" / "policy" / "model.safetensors")
                    share = sum(x.numel() for x in own.values()) / sum(x.numel() for x in whole.values())
                    figures.append(Figure("pocket: numbers in the adapters", share, "× weights"))
            before, *_, after = (100 * accuracy for accuracy in curves["eval/sampled_accuracy"])
            label = f"pocket, {name}, seed {seed}, {steps} steps"
            figures.append(Figure(f"{label}: accuracy before", before, "%"))
            figures.append(Figure(f"{label}: accuracy after", after, "%"))
            figures.append(at_least(f"{label}: gain", after - before, "points", 5.0))
    return figures


def rounding(steps: int) -> list[Figure]:
    figures = []
    for name, settings in (("adapters", (*ADAPTED, "policy.dtype=bfloat16")), ("all weights", ())):
        with tempfile.TemporaryDirectory() as folder:
            curves = typed(Path(folder) / "run", *settings, *BFLOAT16, f"steps={steps}")
        gaps = curves["rollout/logprob_gap_mean"]
        label = f"pocket in bfloat16, {name}: mean |log π − log μ| right after a sync"
        figures.append(Figure(f"{label}, first step", gaps[0], "nats"))
        figures.append(Figure(f"{label}, last quarter of {steps} steps", mean(gaps[-max(1, steps // 4) :]), "nats"))
    return figures


PARTS: dict[str, Callable[[], list[Figure]]] = {
    "cost": lambda: [*cost(128, rounds=15), *cost(512, rounds=9)],
    "exactness": lambda: exactness(128),
    "learning": lambda: learning(40, (1,)),
    "rounding": lambda: rounding(20),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--memory", nargs=2)
    options.add_argument(
        "--parts", choices=PARTS, nargs="+", default=list(PARTS), help="measure again, keep the others"
    )
    arguments = options.parse_args()
    if arguments.memory:
        kind, length = arguments.memory
        update, before = KINDS[kind](int(length)), peak_memory()
        update()
        update()
        return print(peak_memory() - before)
    if arguments.quick:
        return write("lora-quick", [*cost(32, rounds=1), *exactness(32)])
    figures = [figure for part in arguments.parts for figure in PARTS[part]()]
    write("lora", figures, keep=arguments.parts != list(PARTS))


if __name__ == "__main__":
    main()
