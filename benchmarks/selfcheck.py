"""Does the self-check at start-up find what is wrong, and what does it cost?

    python benchmarks/selfcheck.py [--quick]

- **Faults**: those of ``planted.py``, one after the other, in a healthy model of two layers in float32; each has to end
  the check with one line, and models that are healthy have to pass: Qwen3 and Qwen2 (biases), tied and untied.
- **Rounding**: the largest relative differences that the check finds in healthy models, by precision; its tolerances
  are above all of them.
- **Cost**: a check's seconds over those of the update with one batch of 16 × 8 responses of 64 tokens, exact norms in
  two passes, of the pocket policy, and with a quarter of that of a Qwen3 of 29 M parameters; median of nine rounds.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from unittest.mock import patch

import torch
from planted import FAULTS, SHAPE, healthy
from report import ROOT, Figure, at_most, median_ratio, write
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from oblr.errors import SettingError
from oblr.gradnorm.measure import GradNorms
from oblr.packing import pack
from oblr.policy import selfcheck
from oblr.policy.loading import load_model
from oblr.policy.model import TokenScorer
from oblr.types import Completion, Problem, Rollout

FAMILIES = [(family, tied) for family in ("qwen3", "qwen2") for tied in (True, False)]
N_PROMPTS, GROUP_SIZE, PROMPT, RESPONSE = 16, 8, 16, 64


def said_of(name: str) -> str:
    """What the check says of a healthy model with this fault; "" if nothing."""
    family = "qwen2" if "bias" in name else "qwen3"
    lm = healthy(family, tied="sliced" in name or "tied" in name)
    scorer = TokenScorer(lm, 0.8)
    selfcheck.check(scorer, torch.float32)
    try:
        with FAULTS[name](lm):
            selfcheck.check(scorer, torch.float32)
    except SettingError as error:
        return str(error)
    return ""


def differences(lm: PreTrainedModel, precision: torch.dtype) -> tuple[float, float, float]:
    """The largest that the check meets: of log-probabilities, norms, and gradients."""
    found: list[tuple[float, float]] = []
    gradients: list[float] = []
    subtract, largest = selfcheck.subtract, selfcheck.largest

    def noting(*arguments: object) -> tuple[float, float]:
        found.append(subtract(*arguments))  # type: ignore[arg-type]
        return found[-1]

    def noting_largest(gaps: torch.Tensor) -> float:
        gradients.append(largest(gaps))
        return gradients[-1]

    with patch.object(selfcheck, "subtract", noting), patch.object(selfcheck, "largest", noting_largest):
        selfcheck.check(TokenScorer(lm, 1.0), precision)
    return max(logs for logs, _ in found), max(norms for _, norms in found), gradients[-1]


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def update(scorer: TokenScorer, group: Sequence[Rollout], groups: int) -> None:
    """One batch of equal groups."""
    norms = GradNorms("exact", "two")
    for _ in range(groups):
        with norms.score(scorer, scorer.lm, [pack(group)], GROUP_SIZE) as scores:
            scores.backward(torch.ones(GROUP_SIZE, dtype=torch.float64))
    scorer.zero_grad()


def cost(name: str, lm: PreTrainedModel, rounds: int, groups: int) -> Figure:
    scorer, group, ratios = TokenScorer(lm, 1.0), [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(GROUP_SIZE):
        ids = torch.randint(lm.config.vocab_size, (PROMPT + RESPONSE,), generator=generator).tolist()
        response = Completion(ids[PROMPT:], [-1.0] * RESPONSE, True)
        group.append(Rollout(Problem("", "", ""), ids[:PROMPT], response, "", 0.0))
    for _ in range(rounds + 1):
        of_check = seconds(lambda: selfcheck.check(scorer, torch.float32))
        ratios.append(of_check / seconds(lambda: update(scorer, group, groups)))
    return median_ratio(f"{name}: check over update", ratios[1:], "×", most=None if groups == 1 else 1.0)


def large() -> PreTrainedModel:
    """29 M parameters."""
    torch.manual_seed(0)
    shape = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE | shape, head_dim=64, tie_word_embeddings=True)).train()  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    said = {name: said_of(name) for name in FAULTS}
    caught = sum(bool(line) for line in said.values())
    figures = [
        Figure("planted faults", len(said), ""),
        Figure("caught", caught, "", f"= {len(said)}", caught == len(said)),
    ]
    worst = {torch.float32: [0.0], torch.bfloat16: [0.0]}
    for family, tied in FAMILIES:
        worst[torch.float32].append(max(differences(healthy(family, tied), torch.float32)))
        worst[torch.bfloat16].append(max(differences(healthy(family, tied).bfloat16(), torch.bfloat16)))
        with torch.autocast("cpu", torch.bfloat16):
            worst[torch.bfloat16].append(max(differences(healthy(family, tied), torch.bfloat16)))
    pocket = str(ROOT / "models" / "pocket")
    for dtype in ("float32", "bfloat16"):
        worst[getattr(torch, dtype)].append(max(differences(load_model(pocket, dtype), getattr(torch, dtype))))
    for precision, found in worst.items():
        name = str(precision).removeprefix("torch.")
        figures.append(
            at_most(f"healthy models: largest difference in {name}", max(found), "", selfcheck.TOLERANCES[precision])
        )
    rounds, groups = (1, 1) if quick else (9, N_PROMPTS)
    figures.append(cost("pocket policy", load_model(pocket, "float32"), rounds, groups))
    if not quick:
        figures.append(cost("29 M parameters, a quarter of the batch", large(), rounds, groups // 4))
    write("selfcheck-quick" if quick else "selfcheck", figures, said=said)


if __name__ == "__main__":
    main()
