"""What the self-check takes for true: short sequences one at a time, by plain autograd in the model's own forward.

And what is compared with it: differences, in units of what they differ from.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oblr.batch.types import Rollout
from oblr.errors import RunError, SettingError
from oblr.gradnorm.precision import no_autocast
from oblr.policy.model import PolicyModel, copies
from oblr.run.ranks import of_run

#: ``c_i``: the last one's is 1, and one response does not count.
COEFFICIENTS = (0.8, 0.0, -0.5, 1.0)
GROUP_SIZE = 2
#: Share of the whole gradient below which what a parameter has is rounding, as biases of keys have.
NOTHING = 1e-2


@dataclass(frozen=True)
class Truth:
    """Of all probes.

    Attributes:
        logs: log-probabilities of all responses, float64 [n].
        norms: ``n_i`` [S].
        groups: ``‖g_q‖²`` [S / GROUP_SIZE].
        parts: what each trained parameter has of ``n_i``, [S, P].
        squares: squared norm of each trained parameter's part of ``Σ_i c_i ∇log π(o_i|q)``, [P].
    """

    logs: Tensor
    norms: Tensor
    groups: Tensor
    parts: Tensor
    squares: Tensor


class Plain:
    """Plain autograd of the probes ``rollouts``; passes of all ranks where the policy is sharded."""

    def __init__(self, model: PolicyModel, rollouts: Sequence[Rollout]):
        self.model, self.rollouts = model, rollouts

    def own(self, i: int) -> Tensor:
        """Log-probabilities of the i-th response, float32."""
        prompt, response = self.rollouts[i].prompt_ids, self.rollouts[i].completion.token_ids
        with evaluating(self.model.lm), one_line("its own forward fails"):
            return self.model.own(torch.tensor(prompt + response, device=device(self.model)))[len(prompt) - 1 :]

    def truth(self) -> Truth:
        """Leaves ``Σ_i c_i ∇log π(o_i|q)`` in ``.grad``."""
        logs, parts = [], []
        for i in range(len(self.rollouts)):
            self.model.zero_grad()
            logs.append(differentiate(self.own(i), 1.0))
            parts.append(squares(self.model))
        differentiate(self.own(2), COEFFICIENTS[2])  # the gradient of the last one is still there
        norms = torch.stack(parts).sum(1)
        groups = torch.stack([COEFFICIENTS[0] ** 2 * norms[0], squares(self.model).sum()])
        differentiate(self.own(0), COEFFICIENTS[0])
        return Truth(torch.cat(logs), norms, groups, torch.stack(parts), squares(self.model))

    def add_gradient(self, sign: float = 1.0) -> None:
        """Adds ``± Σ_i c_i ∇log π(o_i|q)`` to ``.grad``."""
        for i, coefficient in enumerate(COEFFICIENTS):
            if coefficient:
                differentiate(self.own(i), sign * coefficient)


@dataclass(frozen=True)
class Gaps:
    """Relative differences, each the largest of all ranks; infinite where one is not a number.

    Attributes:
        logs: of all log-probabilities.
        norms: the largest of an ``n_i`` or ``‖g_q‖²``.
        gradients: of the weighted gradient, of each trained parameter, float64 [P].
        parts: of each trained parameter's part of an ``n_i``, likewise.
    """

    logs: float
    norms: float
    gradients: Tensor
    parts: Tensor


def gaps(model: PolicyModel, truth: Truth, logs: Tensor, found: Tensor, expected: Tensor) -> Gaps:
    """Of log-probabilities and squared norms from the truth, and of what is left in ``.grad``, where nothing should be.

    Collective.

    Args:
        logs: [n], in the truth's order.  found, expected: ``n_i`` and ``‖g_q‖²``.
    """
    left, whole = squares(model).sqrt(), truth.squares.sqrt()
    of_logs = (logs - truth.logs).norm() / truth.logs.norm()
    of_norms = ((found - expected).abs() / expected).max()
    # where a parameter has no gradient, as one that is not used has not, nothing is no difference
    of_gradients = torch.where(left == 0, 0.0, left / (whole + NOTHING * whole.norm()))
    pooled = torch.cat([of_logs[None], of_norms[None], of_gradients]).nan_to_num(nan=torch.inf)
    pooled = of_run().reduce(pooled, "max").cpu()
    return Gaps(pooled[0].item(), pooled[1].item(), pooled[2:], torch.zeros_like(pooled[2:]))


def gaps_of_parts(truth: Truth, found: Tensor) -> Gaps:
    """Of parts of ``n_i``, [S, P], where nothing else is compared. Collective."""
    of_parts = (found - truth.parts).abs() / (truth.parts + NOTHING**2 * truth.norms[:, None])
    pooled = of_run().reduce(of_parts.nan_to_num(nan=torch.inf).amax(0), "max").cpu()
    return Gaps(0.0, 0.0, torch.zeros_like(pooled), pooled)


def differentiate(logprobs: Tensor, coefficient: float) -> Tensor:
    """Adds to ``.grad``; returns the log-probabilities, float64."""
    with no_autocast(logprobs):
        (coefficient * logprobs.sum()).backward()
    return logprobs.detach().double()


def trained(lm: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in lm.named_parameters() if p.requires_grad}


def device(model: PolicyModel) -> torch.device:
    """Where sequences go: shards may lie in host memory."""
    return of_run().device if model.sharded else next(model.parameters()).device


def squares(model: PolicyModel) -> Tensor:
    """``‖.grad‖²`` of each trained parameter, float64 [P]."""
    found = []
    for p in trained(model.lm).values():
        grad = torch.zeros(1) if p.grad is None else p.grad
        of_ranks = copies(grad) if isinstance(grad, DTensor) else 1
        grad = grad.to_local() if isinstance(grad, DTensor) else grad
        rows = torch.linalg.vector_norm(grad, dim=-1, dtype=torch.float32)  # a sum of a million would be 1e-4 off
        found.append((rows.double().square().sum() / of_ranks).to(device(model)))
    return of_run().reduce(torch.stack(found)) if model.sharded else torch.stack(found)


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Whatever a model raises that is not made for this is one line; the traceback is in the log."""
    try:
        yield
    except (SettingError, RunError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise SettingError("policy.path", f"{what}: {type(error).__name__}: {said}", "use another model") from error


@contextmanager
def evaluating(lm: nn.Module) -> Iterator[None]:
    """Without dropout."""
    training = [(module, module.training) for module in lm.modules()]
    lm.eval()
    try:
        yield
    finally:
        for module, mode in training:
            module.training = mode
