"""Which causal language models of transformers are trained right, and which are refused, and why?

    python benchmarks/models.py [--quick]

A tiny random model of every type that ``AutoModelForCausalLM`` knows (``tiny_models.py``) goes through what a run does,
in a process of its own: dropout off, the self-check, and a micro-batch of six packed sequences in three groups, in one
pass and in two. The truth does not depend on the self-check: float64 autograd in the model's own forward, of other
sequences, one at a time.

- **right**: log-probabilities, ``n_i``, ``‖g_q‖²`` and each parameter's gradient are the truth's to 1e-5; of models
  whose plain float32 autograd is itself further off, to twice what that is.
- **refused**: one line ends the run before an engine starts.
- **wrong**: neither. There must be none.
- **in part**: right, and the tiny model lacks a kind of layer that others of its type may have.
- **not built**: no tiny model could be made of generic settings whose own forward runs.

The table is ``docs/models.md``. ``--quick``: a dozen types, and no table.
"""

import copy
import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import get_args

import torch
import transformers
from figures import ROOT, Figure, asked_to_be_quick, at_most, write
from tiny_models import CONTEXT, VOCABULARY, NotBuilt, lacking, tiny
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from oblr.batch.packing import pack
from oblr.batch.types import Rollout
from oblr.errors import SettingError
from oblr.gradnorm.measure import GradNorms, Passes
from oblr.policy.loading import without_dropout
from oblr.policy.model import PolicyModel
from oblr.policy.selfcheck import check
from oblr.problem import Completion, Problem

QUICK = (
    *("qwen3", "llama", "gemma2", "gemma3_text", "granite", "cohere", "gpt2", "gpt_neox", "phi", "exaone4"),
    *("mistral", "mixtral", "hrm_text", "seed_oss", "bloom"),
)
SECONDS, TOLERANCE, TEMPERATURE, GROUP_SIZE = 120.0, 1e-5, 0.8, 2
#: Prompt and response tokens of each sequence. One fills the context, and all of a row are more.
SHAPES = ((3, 9), (5, 20), (1, 1), (8, CONTEXT - 8), (2, 13), (4, 6))
COEFFICIENTS = (0.7, -0.4, 1.3, 0.2, -0.9, 0.5)
#: Share of the whole gradient that a parameter's may be off by, whatever its own: biases of keys have none.
NOTHING = 1e-6
Verdict = tuple[str, str, float]
VERDICTS = ("right", "refused", "in part", "not built")


def sequences(shapes: Sequence[tuple[int, int]] = SHAPES) -> list[Rollout]:
    generator = torch.Generator().manual_seed(7)
    found = []
    for prompt, response in shapes:
        ids = torch.randint(3, VOCABULARY, (prompt + response,), generator=generator).tolist()
        answer = Completion(ids[prompt:], [0.0] * response, True)
        found.append(Rollout(Problem("", "", ""), ids[:prompt], answer, "", 0.0))
    return found


@dataclass(frozen=True)
class Found:
    """Log-probabilities of all response tokens, ``n_i``, ``‖g_q‖²``, and ``Σ_i c_i ∇log π(o_i|q)``; float64."""

    logs: Tensor
    norms: Tensor
    groups: Tensor
    gradient: dict[str, Tensor]


def autograds(lm: PreTrainedModel, rollouts: Sequence[Rollout]) -> Found:
    """By plain autograd in the model's own forward, one sequence at a time, in the precision of its weights."""
    lm, logs, gradients = lm.eval(), [], []
    for rollout in rollouts:
        ids = torch.tensor([rollout.prompt_ids + rollout.completion.token_ids])
        logits = lm(ids, use_cache=False).logits[0, len(rollout.prompt_ids) - 1 : -1] / TEMPERATURE
        own = logits.log_softmax(-1).gather(-1, torch.tensor(rollout.completion.token_ids)[:, None])[:, 0]
        lm.zero_grad()
        own.sum().backward()
        logs.append(own.detach().double())
        gradients.append({name: p.grad.double() for name, p in lm.named_parameters() if p.grad is not None})
    groups = [square(combined(gradients, k, k + GROUP_SIZE)) for k in range(0, len(rollouts), GROUP_SIZE)]
    norms = torch.tensor([square(gradient) for gradient in gradients], dtype=torch.float64)
    whole = combined(gradients, 0, len(rollouts))
    return Found(torch.cat(logs), norms, torch.tensor(groups, dtype=torch.float64), whole)


def steps(model: PolicyModel, passes: Passes, rollouts: Sequence[Rollout]) -> Found:
    """By the step's own route."""
    lm = model.lm.train()
    lm.zero_grad()
    with GradNorms("exact", passes).measure(model, lm, [pack(rollouts, model.longest_row)], GROUP_SIZE) as measured:
        groups = measured.backward(torch.tensor(COEFFICIENTS, dtype=torch.float64))
    gradient = {name: p.grad.double() for name, p in lm.named_parameters() if p.grad is not None}
    return Found(measured.tokens.logs, measured.square_norms, groups, gradient)


def square(gradient: dict[str, Tensor]) -> float:
    return sum(g.square().sum().item() for g in gradient.values())


def combined(gradients: Sequence[dict[str, Tensor]], start: int, end: int) -> dict[str, Tensor]:
    zero = torch.zeros((), dtype=torch.float64)
    names = {name: None for gradient in gradients for name in gradient}
    parts = list(zip(COEFFICIENTS, gradients, strict=True))[start:end]
    return {name: sum((c * g.get(name, zero) for c, g in parts), zero) for name in names}


def error(found: Found, truth: Found) -> float:
    """The largest relative one of all that a step finds."""
    errors = [((found.logs - truth.logs).abs().max() / truth.logs.abs().max()).item()]
    errors += [((f - t).abs() / t).max().item() for f, t in ((found.norms, truth.norms), (found.groups, truth.groups))]
    floor, zero = NOTHING / TOLERANCE * square(truth.gradient) ** 0.5, torch.zeros(())
    for name in {**found.gradient, **truth.gradient}:
        f, t = (gradient.get(name, zero) for gradient in (found.gradient, truth.gradient))
        errors.append(((f - t).norm() / (t.norm() + floor)).item())
    return max(e if e == e else float("inf") for e in errors)


def judge(make: Callable[[], PreTrainedModel], lacks: Callable[[PreTrainedModel], list[str]]) -> Verdict:
    """What becomes of a model, the line that refuses it, and the error of the step with it, if any.

    Args:
        lacks: kinds of layers that it might have and has not.
    """
    try:
        lm = make()
    except NotBuilt as why:
        return "not built", str(why), 0.0
    try:
        model = PolicyModel(without_dropout(lm), TEMPERATURE)
        check(model, torch.float32, CONTEXT, model.longest_row)
    except SettingError as why:
        return "refused", str(why).removeprefix("policy.path: "), 0.0
    try:
        worst, right = compare(model, sequences())
    except Exception as error:  # which the self-check has let through
        return "wrong", f"{type(error).__name__}: {' '.join(str(error).split())[:120]}", 0.0
    if right and (kinds := lacks(lm)):
        return "in part", f"right, but the tiny model has no {', '.join(kinds)}", worst
    return "right" if right else "wrong", "", worst


def compare(model: PolicyModel, rollouts: Sequence[Rollout]) -> tuple[float, bool]:
    """The largest error of the step with these, and whether that is rounding."""
    truth = autograds(copy.deepcopy(model.lm).double(), rollouts)
    worst = max(error(steps(model, passes, rollouts), truth) for passes in get_args(Passes)[1:])
    return worst, worst <= TOLERANCE or worst <= 2 * error(autograds(copy.deepcopy(model.lm), rollouts), truth)


def alone(kind: str) -> Verdict:
    """`judge` of a type's tiny model in a process that may take :data:`SECONDS`."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def work(end: Connection) -> None:
        end.send(judge(partial(tiny, kind), lacking))

    process = context.Process(target=work, args=(there,))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else ("not built", f"more than {SECONDS:g} s", 0.0)
    except EOFError:
        return "not built", "its process died", 0.0
    finally:
        process.kill()
        process.join()


def table(verdicts: dict[str, Verdict]) -> str:
    counts = Counter(kind for kind, *_ in verdicts.values())
    lines = [
        "# Models",
        "",
        f"What becomes of each of the {len(verdicts)} types of causal language models of transformers "
        f"{transformers.__version__}, in a tiny random configuration: {counts['right']} are trained right, to "
        f"{TOLERANCE:g} of float64 autograd or as near as float32 autograd is; "
        f"{counts['refused']} are refused in one line before a run begins; "
        f"{counts['wrong']} are wrong; {counts['in part']} are right as far as tried, in models that lack a kind of "
        f"layer; of {counts['not built']} no tiny model could be built. Made by "
        "`python benchmarks/models.py`.",
        "",
        "| type | verdict | why |",
        "|---|---|---|",
    ]
    for kind, (verdict, why, _) in sorted(verdicts.items()):
        short = why.split(" (this model cannot")[0].split(" (use a")[0].split(" (freeze")[0].replace("|", "\\|")
        lines.append(f"| {kind} | {verdict} | {short} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    verdicts = {kind: alone(kind) for kind in (QUICK if quick else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}
    counts, name = Counter(kind for kind, *_ in verdicts.values()), "types of transformers"
    errors = [error for kind, _, error in verdicts.values() if kind == "right"]
    figures = [
        Figure(name, len(verdicts), ""),
        at_most(f"{name}: wrong", counts["wrong"], "", 0),
        *(Figure(f"{name}: {kind}", counts[kind], "") for kind in ("right", "refused", "in part", "not built")),
        Figure(f"{name}: median relative error of those that are right", median(errors), ""),
        Figure(f"{name}: largest, where float32 autograd's is as large", max(errors), ""),
    ]
    write("models-quick" if quick else "models", figures)
    if not quick:
        (ROOT / "docs" / "models.md").write_text(table(verdicts))


if __name__ == "__main__":
    main()
