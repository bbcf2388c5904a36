"""What would an update take on a GPU? Counted on paper: operations, bytes, launches, waits; seconds and MFU from them.

    python benchmarks/roofline.py [--quick] [--calibration]

The very code runs on shapes alone, a micro-batch of 8,192 tokens of Qwen3-4B (tied) and 8B (untied) with a GPU's ways
and bfloat16 products; `oblr.plan.roofline` says how long that takes, and what it leaves out. The plain update, which
others are measured by, is counted alike.

How far that may be trusted is tried on this CPU (``--calibration``): updates of several shapes, lengths and kinds,
predicted from the same counts with this machine's speed, which is measured in the same run, against measured.
"""

import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from figures import ROOT, Figure, at_least, at_most, parser, write
from transformers import AutoConfig, PretrainedConfig, Qwen3Config, Qwen3ForCausalLM

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.packing import pack
from oblr.batch.types import RolloutBatch, TokenStatistics
from oblr.gradnorm.measure import GradNorms
from oblr.gradnorm.precision import no_autocast
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.plan.machine import rest, this_cpu
from oblr.plan.roofline import GPUS, Speed, model_flops, predict
from oblr.plan.update import Batch, Update, World, plan_update
from oblr.plan.work import Work
from oblr.policy.model import PolicyModel
from oblr.policy.step import PolicyModule
from oblr.schedules.constant import ConstantSchedule

GIB, TOKENS, GROUP_SIZE, PROMPT = 2**30, 8192, 4, 64
#: kind → tier and passes
KINDS = {
    "plain": ("uniform", "one"),
    "logit": ("logit", "one"),
    "sketch, one pass": ("sketch", "one"),
    "sketch, two passes": ("sketch", "two"),
    "exact, one pass": ("exact", "one"),
    "exact, two passes": ("exact", "two"),
}
#: Ceilings at 4B, sequences of 512 or 2,048 tokens, without checkpointing: of every kind but plain; …
CEILINGS = {"host syncs": 4, "float32 products": 0.01}
#: … time on an H100 over plain's; launches of one exact pass over plain's; least MFU of the two.
TIMES = {"logit": 1.02, "sketch, one pass": 1.08, "exact, one pass": 1.15, "exact, two passes": 2.1}
LAUNCHES, MFU = 2.0, 0.45


@dataclass(frozen=True)
class Ragged(Batch):
    """Sixteen sequences of no two lengths."""

    def full(self, token_budget: int) -> list[int]:
        lengths = torch.linspace(128, 896, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(2))]
        return lengths.int().tolist()


BATCHES: dict[str, Batch] = {
    "512": Batch(64, 8, 512, 512 - PROMPT),  # the paper's G; of longer ones no more fit
    "2048": Batch(64, GROUP_SIZE, 2048, 2048 - PROMPT),
    "128 to 896": Ragged(64, GROUP_SIZE, 896, 896 - PROMPT),
}


@dataclass(frozen=True)
class Case:
    size: str
    lengths: str
    kind: str
    checkpointing: bool = False

    @property
    def name(self) -> str:
        return f"{self.size}, T={self.lengths}{', checkpointing' * self.checkpointing}: {self.kind}"

    @property
    def plain(self) -> "Case":
        return Case(self.size, self.lengths, "plain", self.checkpointing)

    @property
    def config(self) -> PretrainedConfig:
        return AutoConfig.from_pretrained(ROOT / "conf" / "architecture" / "Qwen" / f"Qwen3-{self.size}-Base")

    def count(self) -> "Count":
        batch = BATCHES[self.lengths]
        world = World(mixed=True, checkpointing=self.checkpointing)
        planned = plan_update(policy(self.kind), self.config, world, batch)
        lengths = batch.full(TOKENS)
        return Count(planned, model_flops(self.config, lengths, sum(lengths) - PROMPT * len(lengths)))


@dataclass(frozen=True)
class Count:
    """What a micro-batch takes."""

    planned: Update
    model_flops: float

    @property
    def work(self) -> Work:
        return self.planned.work

    def seconds(self, speed: Speed) -> float:
        return predict(self.work, speed).seconds

    def mfu(self, speed: Speed) -> float:
        return self.model_flops / self.seconds(speed) / speed.peak

    @property
    def syncs(self) -> float:
        return sum(self.work.syncs.values())

    @property
    def float32(self) -> float:
        return self.work.total("flops", lambda op: op.dtype not in ("bfloat16", "float16")) / self.work.total("flops")


class PlainPolicy(PolicyModule):
    """Adds ``∇θ Σ_t log π_t`` to ``.grad``, micro-batch by micro-batch, and steps; no norm, baseline or moment."""

    def update(self, batch: RolloutBatch, *unused: Any, **settings: Any) -> None:  # type: ignore[override]
        for _groups, parts in self.micro_batches(batch, torch.ones(batch.n_groups, dtype=torch.bool)):
            for packed in parts:
                total = cast(TokenStatistics, self.scorer(packed)).logprobs.sum()
                with no_autocast(total):
                    total.backward()
        self.optimizers().step()  # type: ignore[union-attr]


def policy(kind: str, token_budget: int = TOKENS, optimizer: Any = torch.optim.SGD) -> PolicyModule:
    tier, passes = KINDS[kind]
    return (PlainPolicy if kind == "plain" else PolicyModule)(
        path="",
        dtype="float32",
        gradnorm=GradNorms(tier, passes),
        baseline=GradientWeightedBaseline(),
        loss=PolicyGradientLoss("none"),
        schedule=ConstantSchedule(1e-2),
        optimizer=partial(optimizer, lr=0.1),
        temperature=1.0,
        token_budget=token_budget,
        logprob_gap_mean=1.0,
        logprob_gap_p99=1.0,
    )


def figures_of(case: Case, count: Count, plain: Count) -> list[Figure]:
    """With the targets where they are set: 4B, one length."""
    h100, held = GPUS["h100"], case.size == "4B" and case.lengths in ("512", "2048") and not case.checkpointing
    bound = TIMES.get(case.kind) if held else None
    values = {"host syncs": (count.syncs, ""), "float32 products": (count.float32, "of operations")}
    figures = []
    for name, (value, unit) in values.items():
        label = f"{case.name}: {name}"
        figures.append(
            at_most(label, value, unit, CEILINGS[name]) if held and case.kind != "plain" else Figure(label, value, unit)
        )
    launches = count.work.total("launches")
    ratio = launches / plain.work.total("launches")
    label = f"{case.name}: launches"
    figures.append(Figure(label, launches, ""))
    if case.kind == "exact, one pass" and held:
        figures.append(at_most(f"{label} over plain", ratio, "×", LAUNCHES))
    for name, speed in GPUS.items():
        figures.append(Figure(f"{case.name}: predicted on {name.upper()}", 1e3 * count.seconds(speed), "ms"))
    label, ratio = f"{case.name}: predicted", count.seconds(h100) / plain.seconds(h100)
    figures.append(at_most(label, ratio, "× plain", bound) if bound else Figure(label, ratio, "× plain"))
    label, mfu = f"{case.name}: MFU on H100", count.mfu(h100)
    judged = held and case.kind in ("plain", "exact, one pass")
    figures.append(at_least(label, mfu, "", MFU) if judged else Figure(label, mfu, ""))
    figures.append(Figure(f"{case.name}: peak memory", count.planned.peak.total() / GIB, "GiB"))
    return figures


def on_paper(cases: list[Case]) -> list[Figure]:
    counts: dict[Case, Count] = {}
    figures = []
    for case in cases:
        for wanted in (case.plain, case):
            if wanted not in counts:
                counts[wanted] = wanted.count()
        figures += figures_of(case, counts[case], counts[case.plain])
        print(case.name, "counted", flush=True)
    return figures


# --- how far it may be trusted --------------------------------------------------------------------------------------


def shape(hidden: int, layers: int, vocabulary: int, tied: bool) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        tie_word_embeddings=tied,
        max_position_embeddings=8192,
    )


SHAPES = {"128×8": (128, 8, 512, True), "256×8": (256, 8, 2048, True), "512×7": (512, 7, 8192, False)}
CALIBRATED = ("plain", "logit", "sketch, one pass", "exact, one pass", "exact, two passes")


def measured(config: Qwen3Config, kind: str, lengths: list[int], batch: Batch, rounds: int) -> float:
    """Seconds of a real update on the CPU, of its micro-batch alone; the median."""
    torch.manual_seed(0)
    model, packed = PolicyModel(Qwen3ForCausalLM(config).train(), 1.0), pack(batch.rollouts(lengths))
    tier, passes = KINDS[kind]
    norms, taken = GradNorms(tier, passes), []
    for _ in range(rounds + 1):
        model.zero_grad(set_to_none=False)
        rest()
        start = time.perf_counter()
        if kind == "plain":
            model(packed).logprobs.sum().backward()
        else:
            with norms.measure(model, model.lm, [packed], GROUP_SIZE) as measured:
                measured.backward(torch.ones(len(lengths), dtype=torch.float64))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def calibration(shapes: list[str], lengths: list[int], kinds: tuple[str, ...], rounds: int) -> list[Figure]:
    from scipy.stats import spearmanr  # a machine that measures updates may lack it

    speed, pairs, figures = this_cpu(), [], []
    for name in shapes:
        config = shape(*SHAPES[name])
        for length in lengths:
            batch = Batch(2, GROUP_SIZE, length, length - 16)
            tokens = [length] * 2 * GROUP_SIZE
            for kind in kinds:
                counted = plan_update(policy(kind, sum(tokens)), config, World(gpu=False), batch)
                predicted = predict(counted.work, speed).seconds
                taken = measured(config, kind, tokens, batch, rounds)
                pairs.append((predicted, taken))
                figures.append(Figure(f"CPU, {name}, T={length}, {kind}: measured", 1e3 * taken, "ms"))
                figures.append(Figure(f"CPU, {name}, T={length}, {kind}: predicted / measured", predicted / taken, ""))
    predictions, truths = zip(*pairs, strict=True)
    ratios = [p / t for p, t in pairs]
    errors, scale = [abs(ratio - 1) for ratio in ratios], statistics.median(ratios)
    return [
        Figure("CPU: speed of products", speed.peak / 1e9, "GFLOP/s"),
        Figure("CPU: speed of memory", speed.bandwidth / 1e9, "GB/s"),
        Figure("CPU: an operation's own time", 1e6 * speed.launch, "µs"),
        Figure("CPU: rank correlation of predicted and measured", float(spearmanr(predictions, truths).statistic), ""),
        Figure("CPU: median relative error of prediction", statistics.median(errors), ""),
        Figure("CPU: largest relative error of prediction", max(errors), ""),
        Figure("CPU: median of predicted / measured", scale, ""),
        Figure("CPU: median relative error but for that", statistics.median(abs(r / scale - 1) for r in ratios), ""),
        *figures,
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--calibration", action="store_true", help="try on this CPU how far it may be trusted")
    args = options.parse_args()
    if args.quick:
        figures = on_paper([Case("4B", "512", "plain")])
        return write("roofline-quick", figures + calibration(["128×8"], [64], ("plain", "exact, one pass"), 3))
    if args.calibration:
        return write("roofline-calibration", calibration(list(SHAPES), [64, 256, 512], CALIBRATED, 5))
    cases = [Case("4B", lengths, kind) for lengths in BATCHES for kind in KINDS]
    cases += [Case("4B", "2048", kind, True) for kind in KINDS if "sketch" not in kind]
    cases += [Case("8B", lengths, kind) for lengths in ("512", "2048") for kind in KINDS if kind in CALIBRATED]
    write("roofline", on_paper(cases))


if __name__ == "__main__":
    main()
