"""Does the self-check at start-up find what is wrong, at any depth and precision, and what does it cost?

    python benchmarks/selfcheck.py [--quick]

- **Faults**: those of ``planted.py``, one after the other, in random models of 2 to 64 layers, in float32, in bfloat16,
  and under autocast, whose first round is float32's, of 2 and 12 layers; each has to end the check with one line.
- **Healthy models**: Qwen3 and Qwen2 of the same depths, whose layers' outputs are once and twice as large as what they
  are given; Qwen3 and Qwen2 (biases), tied and untied; the pocket policy; SmolLM2-135M, if it is there. All pass. What
  they are off by, over the limit: in float32, and in bfloat16, where the limit is the model's own rounding.
- **Cost**: a check's seconds over those of the update with one batch of 16 × 8 responses of 64 tokens, exact norms in
  two passes, of the pocket policy, and with a quarter of that of a Qwen3 of 29 M parameters; median of nine rounds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from unittest.mock import patch

import torch
from figures import ROOT, Figure, asked_to_be_quick, at_most, median_ratio, write
from planted import FAULTS, SHAPE, deep, healthy
from smollm2 import FOLDER
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from oblr.batch.packing import pack
from oblr.batch.types import Rollout
from oblr.errors import SettingError
from oblr.gradnorm.measure import GradNorms
from oblr.policy import rounding, selfcheck
from oblr.policy.autograds import Gaps
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem

FAMILIES = [(family, tied) for family in ("qwen3", "qwen2") for tied in (True, False)]
DEPTHS, AUTOCAST_DEPTHS, GAINS = (2, 12, 36, 64), (2, 12), (1.0, 2.0)
PRECISIONS = ("float32", "bfloat16", "autocast")
POCKET = str(ROOT / "models" / "pocket")
N_PROMPTS, GROUP_SIZE, PROMPT, RESPONSE = 16, 8, 16, 64


def said_of(lm: PreTrainedModel, precision: str, fault: AbstractContextManager[object]) -> str:
    """What the check says of a model with this fault; "" if nothing."""
    lm = lm.bfloat16() if precision == "bfloat16" else lm
    try:
        with fault, _autocast(precision):
            selfcheck.check(PolicyModel(lm, 0.8), torch.float32 if precision == "float32" else torch.bfloat16)
    except SettingError as error:
        return str(error)
    return ""


def _autocast(precision: str) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext()


@contextmanager
def compared() -> Iterator[dict[bool, list[float]]]:
    """Differences over their limits, whether they are in float32 or not; nothing is refused for them."""
    found: dict[bool, list[float]] = {True: [], False: []}
    of = rounding.Limits.of

    def noting(self: rounding.Limits, gaps: Gaps) -> Gaps:
        narrow = self.floor == rounding.FLOORS[torch.float32]
        limits = of(self, gaps) if narrow else self.widest
        worst = (gaps.gradients / limits.gradients).max().item(), (gaps.parts / limits.parts).max().item()
        found[narrow].append(max(gaps.logs / limits.logs, gaps.norms / limits.norms, *worst))
        return limits

    with (
        patch.object(rounding.Limits, "of", noting),
        patch.multiple(
            selfcheck.Round,
            **dict.fromkeys(("judge_logs", "judge_gradients", "judge_parts", "judge_norms", "check_reach"), quiet),
        ),
    ):
        yield found


def quiet(*_: object) -> None:
    """In place of what would refuse a model, or try rows that have nothing to do with what is measured."""


def over_limits(lm: PreTrainedModel, precision: str) -> tuple[float, float]:
    """The largest in float32, and in bfloat16."""
    with compared() as found:
        said = said_of(lm, precision, nullcontext())
    assert not said, said
    return max(found[True], default=0.0), max(found[False], default=0.0)


def faults_at(depth: int, precision: str) -> tuple[list[Figure], dict[str, str]]:
    said = {}
    for name, plant in FAULTS.items():
        lm = deep("qwen2" if "bias" in name else "qwen3", depth)
        said[name] = said_of(lm, precision, plant(lm))
    caught = sum(bool(line) for line in said.values())
    name = f"{depth} layers, {precision}: faults caught"
    return [Figure(name, caught, "", f"= {len(said)}", caught == len(said))], said


def healthy_at(depth: int, precision: str, gains: Sequence[float]) -> list[Figure]:
    found = [over_limits(deep(family, depth, gain), precision) for family in ("qwen3", "qwen2") for gain in gains]
    name = f"{depth} layers, {precision}: healthy models, largest difference over its limit"
    figures = [at_most(f"{name}, in float32", max(narrow for narrow, _ in found), "", 1.0)]
    if precision != "float32":
        figures.append(at_most(f"{name}, in bfloat16", max(wide for _, wide in found), "", 1.0))
    return figures


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def update(model: PolicyModel, group: Sequence[Rollout], groups: int) -> None:
    """One batch of equal groups."""
    norms = GradNorms("exact", "two")
    for _ in range(groups):
        with norms.measure(model, model.lm, [pack(group)], GROUP_SIZE) as measured:
            measured.backward(torch.ones(GROUP_SIZE, dtype=torch.float64))
    model.zero_grad()


def cost(name: str, lm: PreTrainedModel, rounds: int, groups: int) -> Figure:
    model, group, ratios = PolicyModel(lm, 1.0), [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(GROUP_SIZE):
        ids = torch.randint(lm.config.vocab_size, (PROMPT + RESPONSE,), generator=generator).tolist()
        response = Completion(ids[PROMPT:], [-1.0] * RESPONSE, True)
        group.append(Rollout(Problem("", "", ""), ids[:PROMPT], response, "", 0.0))
    for _ in range(rounds + 1):
        of_check = seconds(lambda: selfcheck.check(model, torch.float32))
        ratios.append(of_check / seconds(lambda: update(model, group, groups)))
    return median_ratio(f"{name}: check over update", ratios[1:], "×", most=None if groups == 1 else 1.0)


def large() -> PreTrainedModel:
    """29 M parameters."""
    torch.manual_seed(0)
    shape = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE | shape, head_dim=64, tie_word_embeddings=True)).train()  # type: ignore[arg-type]


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    figures: list[Figure] = []
    said: dict[str, str] = {}
    for depth in DEPTHS[:1] if quick else DEPTHS:
        for precision in PRECISIONS[:2] if quick else PRECISIONS:
            if precision != "autocast" or depth in AUTOCAST_DEPTHS:
                of_depth, lines = faults_at(depth, precision)
                figures += of_depth
                said = said or lines
            figures += healthy_at(depth, precision, GAINS[1:] if quick else GAINS)
            print(*figures, sep="\n", flush=True)
    caught = sum(bool(line) for line in said.values())
    figures.append(Figure("planted faults", len(said), ""))
    figures.append(Figure("caught", caught, "", f"= {len(said)}", caught == len(said)))
    others = {f"{family}, {'tied' if tied else 'untied'}": healthy(family, tied) for family, tied in FAMILIES}
    others["pocket policy"] = load_model(POCKET, "float32")
    if FOLDER.exists() and not quick:
        others["SmolLM2-135M"] = load_model(str(FOLDER), "float32")
    for name, lm in others.items():
        for precision in ("autocast", "bfloat16"):  # the latter changes it
            narrow, wide = over_limits(lm, precision)
            title = f"{name}, {precision}: largest difference over its limit"
            figures.append(at_most(f"{title}, in float32", narrow, "", 1.0))
            figures.append(at_most(f"{title}, in bfloat16", wide, "", 1.0))
    rounds, groups = (1, 1) if quick else (9, N_PROMPTS)
    figures.append(cost("pocket policy", load_model(POCKET, "float32"), rounds, groups))
    if not quick:
        figures.append(cost("29 M parameters, a quarter of the batch", large(), rounds, groups // 4))
    write("selfcheck-quick" if quick else "selfcheck", figures)


if __name__ == "__main__":
    main()
