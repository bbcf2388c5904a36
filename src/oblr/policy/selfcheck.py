"""Before a run: whether this very model, on these ranks, gives the numbers that plain autograd gives.

A few short sequences go packed through all routes of the step, and one at a time through the model's own forward. What
differs ends the run before an engine starts. The memory is that of one gradient: the routes' are subtracted from
autograd's, parameter by parameter, in ``.grad``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oblr.errors import RunError, SettingError
from oblr.gradnorm.measure import GradNorms
from oblr.gradnorm.precision import no_autocast
from oblr.packing import PackedBatch, pack
from oblr.policy import blame
from oblr.policy.model import TokenScorer
from oblr.policy.positions import MOST, ROW, beside, context_of, in_one_row, reach_of, short_windows
from oblr.policy.probes import probes
from oblr.run.randomness import kept_random_state
from oblr.run.ranks import of_run
from oblr.types import Rollout

#: Largest relative difference that is rounding, by the precision of the layers' products: benchmarks/selfcheck.py.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.2}
#: Of log-probabilities: a sum over layers, which has less of it.
OF_LOGS = 0.2
#: Share of the whole gradient below which what a parameter has is rounding, as biases of keys have.
NOTHING = 1e-2
#: ``c_i``: the last one's is 1, and one response does not count.
COEFFICIENTS = (0.8, 0.0, -0.5, 1.0)
GROUP_SIZE = 2


def check(
    scorer: TokenScorer, computed: torch.dtype, longest: int | None = None, longest_row: int | None = None
) -> None:
    """Leaves model, gradients and generators as they were. Collective.

    Args:
        scorer: of the policy; nothing of it has a gradient.
        computed: precision of the layers' products.
        longest: tokens of the longest sequence that a run can make; None: any, as far as the model has positions.
        longest_row: tokens of the longest row that will be packed; None: any.

    Raises:
        SettingError: log-probabilities, squared norms of sequences or groups, or the weighted gradient are off.
    """
    longest = longest or reach_of(scorer.lm.config)
    lm, tolerance = scorer.lm, TOLERANCES[computed]
    rollouts = probes(cast(nn.Embedding, lm.get_input_embeddings()))
    with kept_random_state(), _left_alone(scorer), short_windows(lm, longest):
        truth = autograds(scorer, rollouts)
        whole, *halves = (pack(some).to(truth.logs.device) for some in (rollouts, rollouts[:2], rollouts[2:]))
        routes = ((GradNorms("exact", "one"), [whole]), (GradNorms("exact", "two"), [whole]), (GradNorms(), halves))
        routes[1][0].gram_rows = 8  # Gram matrices of long sequences are made some rows at a time
        for p in trained(lm).values():
            if p.grad is not None:
                p.grad *= len(routes)
        logs, norms = torch.tensor([subtract(scorer, norms, parts, truth) for norms, parts in routes]).amax(0).tolist()
        if not logs <= OF_LOGS * tolerance:
            layer = blame.strange_layer(scorer, whole, truth.own, tolerance / 10)
            refuse(
                f"{layer} computes something else for packed sequences than in the model's own forward: "
                f"log-probabilities differ by {percent(logs)}"
            )
        compare_gradients(scorer, truth, tolerance, len(routes))
        if not norms <= tolerance:
            scorer.zero_grad()
            differentiate(truth.own(0), 1.0)
            alone, expected = pack(rollouts[:1]).to(truth.logs.device), squares(scorer).tolist()
            layer = blame.strange_norm(scorer, alone, dict(zip(trained(lm), expected, strict=True)))
            refuse(f"squared norms of gradients differ by {percent(norms)} from autograd's, first that of {layer}")
        scorer.zero_grad()  # a pass without gradients would keep some of what shards have
        check_reach(scorer, rollouts, truth, OF_LOGS * tolerance, longest, longest_row)


@dataclass(frozen=True)
class Truth:
    """What plain autograd finds of the probes, one at a time, in the model's own forward.

    Attributes:
        own: the log-probabilities of the i-th response, float32.
        logs: of all responses, float64 [n].
        norms: ``n_i`` [S].
        groups: ``‖g_q‖²`` [S / GROUP_SIZE].
        squares: squared norm of each trained parameter's part of ``Σ_i c_i ∇log π(o_i|q)``, [P].
    """

    own: Callable[[int], Tensor]
    logs: Tensor
    norms: Tensor
    groups: Tensor
    squares: Tensor


def autograds(scorer: TokenScorer, rollouts: Sequence[Rollout]) -> Truth:
    """Leaves ``Σ_i c_i ∇log π(o_i|q)`` in ``.grad``."""

    def own(i: int) -> Tensor:
        prompt, response = rollouts[i].prompt_ids, rollouts[i].completion.token_ids
        with _evaluating(scorer.lm), _one_line("its own forward fails"):
            return scorer.own(torch.tensor(prompt + response, device=device(scorer)))[len(prompt) - 1 :]

    logs, norms = [], []
    for i in range(len(rollouts)):
        scorer.zero_grad()
        logs.append(differentiate(own(i), 1.0))
        norms.append(squares(scorer).sum())
    differentiate(own(2), COEFFICIENTS[2])  # the gradient of the last one is still there
    groups = torch.stack([COEFFICIENTS[0] ** 2 * norms[0], squares(scorer).sum()])
    differentiate(own(0), COEFFICIENTS[0])
    return Truth(own, torch.cat(logs), torch.stack(norms), groups, squares(scorer))


def differentiate(logprobs: Tensor, coefficient: float) -> Tensor:
    """Adds to ``.grad``; returns the log-probabilities, float64."""
    with no_autocast(logprobs):
        (coefficient * logprobs.sum()).backward()
    return logprobs.detach().double()


def trained(lm: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in lm.named_parameters() if p.requires_grad}


def device(scorer: TokenScorer) -> torch.device:
    """Where sequences go: shards may lie in host memory."""
    return of_run().device if scorer.sharded else next(scorer.parameters()).device


def squares(scorer: TokenScorer) -> Tensor:
    """``‖.grad‖²`` of each trained parameter, float64 [P]."""
    found = []
    for p in trained(scorer.lm).values():
        grad = torch.zeros(()) if p.grad is None else p.grad
        grad = grad.to_local() if isinstance(grad, DTensor) else grad
        found.append(torch.linalg.vector_norm(grad, dtype=torch.float32).double().square().to(device(scorer)))
    return of_run().reduce(torch.stack(found)) if scorer.sharded else torch.stack(found)


def subtract(scorer: TokenScorer, norms: GradNorms, parts: list[PackedBatch], truth: Truth) -> tuple[float, float]:
    """Take the probes' gradient by one route of the step away from ``.grad``.

    Returns:
        relative differences: of all log-probabilities; the largest of an ``n_i`` or ``‖g_q‖²``.
    """
    whole = len(parts) == 1
    scorer.in_slices = scorer.sharded or norms.passes == "two"  # a large head is gone through slice by slice
    coefficients = -torch.tensor(COEFFICIENTS, dtype=torch.float64, device=truth.norms.device)
    with (
        _one_line("the step cannot run it"),
        norms.score(scorer, scorer.lm, parts, GROUP_SIZE if whole else len(COEFFICIENTS)) as scores,
    ):
        groups = scores.backward(coefficients)
    logs = (scores.tokens.logs - truth.logs).norm() / truth.logs.norm()
    expected = torch.cat([truth.norms, truth.groups if whole else truth.squares.sum()[None]])
    found = torch.cat([scores.weights, groups])
    return largest(logs), largest((found - expected).abs() / expected)


def check_reach(
    scorer: TokenScorer,
    rollouts: Sequence[Rollout],
    truth: Truth,
    tolerance: float,
    longest: int | None,
    longest_row: int | None,
) -> None:
    """Whether log-probabilities stay those of each sequence alone beside the longest, and in the longest row."""
    with _one_line("the step cannot run it with long sequences"):
        far = 0.0 if longest is None else largest(beside(scorer, rollouts, truth.logs, longest, scorer.longest_row))
        if not far <= tolerance:
            refuse(
                f"log-probabilities differ by {percent(far)} once a sequence of {longest} tokens is packed beside them",
                "set rollout.max_model_len to the length from which its positions mean something else, or use another",
            )
        context = context_of(scorer.lm.config)
        if context is None or (longest_row is not None and longest_row <= context):
            return
        if scorer.longest_row is not None:
            refuse(f"rows of more than its {context} positions fail: its causal mask is a table of that size")
        if context <= ROW and context * sum(p.numel() for p in scorer.parameters()) <= MOST:
            row = largest(in_one_row(scorer, rollouts, truth.logs, context + 1))
            if not row <= tolerance:
                refuse(f"log-probabilities differ by {percent(row)} in rows of more than its {context} positions")


def largest(gaps: Tensor) -> float:
    """Of all ranks; infinite where one is not a number."""
    return of_run().greatest(gaps.nan_to_num(nan=torch.inf).max().item())


def compare_gradients(scorer: TokenScorer, truth: Truth, tolerance: float, routes: int) -> None:
    """Of what is left in ``.grad``: nothing should be."""
    left, expected = squares(scorer).sqrt(), truth.squares.sqrt()
    gaps = (left / (expected + NOTHING * expected.norm())).nan_to_num(nan=torch.inf)
    if largest(gaps) <= tolerance:
        return
    found = dict(zip(trained(scorer.lm), gaps.tolist(), strict=True))
    order = blame.backward_order(scorer.lm, lambda: truth.own(0))
    name = next(name for name in order if name in found and not found[name] <= tolerance)
    refuse(f"the gradient of {name} differs by {percent(found[name] / routes)} from autograd's")


def percent(gap: float) -> str:
    return f"{100 * gap:.3g} %"


def refuse(
    problem: str,
    fix: str = "this model cannot be trained here: use another, or teach oblr.gradnorm and oblr.policy what it does",
) -> NoReturn:
    raise SettingError("policy.path", problem, fix)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Whatever a model raises that is not made for this is one line; the traceback is in the log."""
    try:
        yield
    except (SettingError, RunError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise SettingError("policy.path", f"{what}: {type(error).__name__}: {said}", "use another model") from error


@contextmanager
def _evaluating(lm: nn.Module) -> Iterator[None]:
    """Without dropout."""
    training = [(module, module.training) for module in lm.modules()]
    lm.eval()
    try:
        yield
    finally:
        for module, mode in training:
            module.training = mode


@contextmanager
def _left_alone(scorer: TokenScorer) -> Iterator[None]:
    buffers = {name: buffer.clone() for name, buffer in scorer.named_buffers()}
    in_slices = scorer.in_slices
    try:
        yield
    finally:
        scorer.in_slices = in_slices
        scorer.zero_grad()
        scorer.rest()
        for name, buffer in scorer.named_buffers():
            if name in buffers and not torch.equal(buffer, buffers[name]):
                buffer.copy_(buffers[name])
