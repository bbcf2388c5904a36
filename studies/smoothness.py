"""How smooth is ``∇ log π`` along a run? Curvature of the log-probability of whole responses.

    python studies/smoothness.py [--quick]

The paper takes ``∇ log π(o|q)`` for bounded and Lipschitz, by constants that nobody knows. Before some steps of a run
under the default schedule, at the rate that the contest has tuned, 16 held-out prompts are answered 4 times. Of each
response:

- ``‖∇ log π‖``, which the first constant bounds;
- the largest ``|λ|`` of ``∇² log π``, which is the local Lipschitz constant, by twelve power iterations, a lower bound;
  a product with the Hessian is a central difference of gradients in float64;
- ``‖∇² log π · d‖``, where ``d`` is the policy gradient of all 64 brought to length 1: what a step meets.

Given are the median and the largest of the 64, and the rank correlation of ``|λ|`` with the norm. ``--quick``: two
steps of one task, few responses.
"""

from collections.abc import Callable, Iterator

import neighbours  # noqa: F401
import torch
from contest import Case, Runs
from figures import Figure, asked_to_be_quick, write
from lost import HORIZON, TASKS
from prior import Places
from results import CONTEST, DEFAULT
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torchmetrics.functional import spearman_corrcoef
from training import composed, observed

from oblr.batch.packing import pack
from oblr.batch.types import Rollout
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel

PROMPTS, RESPONSES, STUDIED, SEED = 16, 4, (0, 10, 30, 60, 90), 11
ITERATIONS, DISTANCE = 12, 1e-4
Gradient = Callable[[Tensor], Tensor]


def curved(gradient: Gradient, at: Tensor, direction: Tensor) -> Tensor:
    """``H d`` for a direction ``d`` of length 1, of the function whose gradient is given; all float64 [D]."""
    ahead, behind = gradient(at + DISTANCE * direction), gradient(at - DISTANCE * direction)
    return (ahead - behind) / (2 * DISTANCE)


def largest(gradient: Gradient, at: Tensor, generator: torch.Generator) -> float:
    """The largest ``|λ|`` of the Hessian, from below."""
    direction, found = torch.randn(len(at), generator=generator, dtype=at.dtype), 0.0
    for _ in range(ITERATIONS):
        if not (length := direction.norm()):
            break
        direction = curved(gradient, at, direction / length)
        found = max(found, direction.norm().item())
    return found


def gradient_of(model: PolicyModel, rollout: Rollout) -> Gradient:
    """``∇ log π(o|q)`` at given parameters."""
    packed = pack([rollout])

    def gradient(at: Tensor) -> Tensor:
        vector_to_parameters(at, model.parameters())
        return parameters_to_vector(torch.autograd.grad(model(packed).logprobs.sum(), list(model.parameters())))

    return gradient


def place_figures(name: str, model: PolicyModel, at: Tensor, rollouts: list[Rollout]) -> Iterator[Figure]:
    generator = torch.Generator().manual_seed(SEED)
    gradients = [gradient_of(model, rollout) for rollout in rollouts]
    slopes = torch.stack([gradient(at) for gradient in gradients])
    rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=at.dtype)
    step = (rewards - rewards.mean()) @ slopes
    found = {
        "‖∇ log π‖": slopes.norm(dim=1),
        "largest |λ| of ∇² log π": torch.tensor([largest(gradient, at, generator) for gradient in gradients]),
    }
    if step.any():
        along = [curved(gradient, at, step / step.norm()).norm() for gradient in gradients]
        found["‖∇² log π · d‖ along a step"] = torch.stack(along)
    for title, values in found.items():
        yield Figure(f"{name}: {title}, median", values.median().item(), "")
        yield Figure(f"{name}: {title}, largest", values.max().item(), "")
    norms, curvatures = (found[title].double() for title in list(found)[:2])
    yield Figure(f"{name}: rank correlation of |λ| and the norm", spearman_corrcoef(curvatures, norms).item(), "")


def task_figures(task: str, studied: tuple[int, ...], prompts: int, responses: int) -> Iterator[Figure]:
    rate = Runs(CONTEST, makes=False).tuned(Case(task, DEFAULT, HORIZON))
    places = Places(studied, responses, SEED)
    settings = (f"eta0={rate:g}", f"steps={HORIZON}", f"data.held_out.size={prompts}", f"seed={SEED}")
    cut = () if studied == STUDIED else ("rollout.prompts_per_step=4", f"steps={studied[-1] + 1}")
    observed((*DEFAULT.overrides, *settings, *cut), places, task)
    path = composed(["paths.output_dir=unused"], task).policy.path
    model = PolicyModel(load_model(str(path), "float32").double(), 1.0)
    for step, parameters, batch in places.taken:
        yield from place_figures(f"{task}, after {step} steps", model, parameters.double(), batch.rollouts)


def main() -> None:
    if asked_to_be_quick(__doc__):
        return write("smoothness-quick", list(task_figures("pocket", (0, 1), 4, 2)))
    write("smoothness", [f for task in TASKS for f in task_figures(task, STUDIED, PROMPTS, RESPONSES)])


if __name__ == "__main__":
    main()
