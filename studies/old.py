"""What do old rollouts cost, and what corrects them? Enumerated: exact means and second moments at ages 0, 1, 2 and 4.

    python studies/old.py [--quick]

Small policies of two-token responses (``tests/helpers/laboratory.py``) each follow their exact gradient for four steps;
groups of three are sampled from the policy ``age`` steps before. Over everything that can be sampled:

- **bias** of a group's gradient by its loss and baseline, over the length of the policy's own gradient;
- **second moment** over that of fresh rollouts under RLOO;
- **growth** of that over fresh rollouts under the same baseline, and by what it is foretold: ``1/ESS`` of the ratios ρ,
  and ``E Σρ²n / E Σρn``, which needs norms, and which ``policy.max_noise`` bounds.

Numbers are sums over policies. ``--quick``: two policies, two ages.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import neighbours  # noqa: F401
import torch
from figures import Figure, asked_to_be_quick, at_most, write
from laboratory import Laboratory, Sequences
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.types import ResponseTokens
from oblr.losses.base import Surrogate
from oblr.losses.policy_gradient import PolicyGradientLoss

AGES, POLICIES, RATES, SIZE = (0, 1, 2, 4), 8, (0.3, 1.0), 3
EXACT = PolicyGradientLoss()
#: By name: loss and baseline.
WAYS: dict[str, tuple[Surrogate, Baseline]] = {
    "none": (EXACT, NoBaseline()),
    "RLOO": (EXACT, RLOOBaseline()),
    "weights ρ²n of the others": (EXACT, GradientWeightedBaseline()),
    "weights ρ²n, own included": (EXACT, GradientWeightedBaseline(form="pooled")),
    "RLOO, ratios ≤ 1.5": (PolicyGradientLoss("sequence", truncate=1.5), RLOOBaseline()),
    "RLOO, uncorrected": (PolicyGradientLoss("none"), RLOOBaseline()),
}
UNBIASED = ("none", "RLOO", "weights ρ²n of the others")


@dataclass
class Sampled:
    """Every group that a policy can be given of an older one.

    Attributes:
        chances: of each, float64 [S].
        prompts, responses: [S], [S, G].
        logs: ``log π − log μ`` of every token, float64 [S, G, T].
    """

    policy: Laboratory
    chances: Tensor
    prompts: Tensor
    responses: Tensor
    logs: Tensor
    behaviour: Tensor

    @classmethod
    def of(cls, policy: Laboratory, older: Laboratory) -> "Sampled":
        chances, prompts, responses = zip(*older.steps(1, SIZE), strict=True)
        place = torch.cat(prompts), torch.cat(responses)
        at = place[0][:, None], place[1]
        logs, theirs = policy.token_logs(policy.theta)[at], older.token_logs(older.theta)[at]
        return cls(policy, torch.tensor(chances, dtype=torch.float64), *place, logs - theirs, theirs.sum(2))

    @property
    def effective(self) -> float:
        """``(Eρ)²/Eρ²`` of a response: ``Eρ`` is 1."""
        squares = (2 * self.logs.sum(2)).exp().mean(1)
        return 1 / (self.chances @ squares).item()

    def moments(self, loss: Surrogate, baseline: Baseline) -> tuple[Tensor, float, float]:
        """Exact mean [D] and second moment of a group's gradient, and how much age has made of it by norms alone.

        The last is ``E Σρ²n / E Σρn``: a sum over what is sampled, and, each response weighed once less, what it would
        be over responses of the policy.
        """
        at, (count, size, length) = (self.prompts[:, None], self.responses), self.logs.shape
        tokens = ResponseTokens(
            logs=self.logs.flatten(),
            energy=torch.zeros(self.logs.numel(), dtype=torch.float64),
            sequences=torch.arange(count * size).repeat_interleave(length),
            behaviour=self.behaviour.flatten(),
            lengths=torch.full((count * size,), length),
            group_size=size,
        )
        norms = self.policy.square_norms[at]
        weights = loss.reward_weights(tokens, norms.flatten()).view_as(norms)
        rewards = self.policy.rewards[at]
        advantages = baseline(Groups(rewards, weights, self.policy.lengths[at], rewards, problems=self.prompts))
        coefficients = loss.coefficients(tokens, advantages.flatten().double(), per_token=False).view(count, size)
        gradients = (coefficients[..., None] * self.policy.gradients[at]).sum(1)
        ratios = self.logs.sum(2).exp()
        above, below = (self.chances @ (ratios**k * norms).sum(1) for k in (2, 1))
        return self.chances @ gradients, (self.chances @ gradients.square().sum(1)).item(), (above / below).item()


def trained(lab: Laboratory, steps: int, rate: float) -> list[Laboratory]:
    """The policy before each step and after the last; each follows the exact gradient, as far as ``rate``."""
    labs = [lab]
    for _ in range(steps):
        after = Sequences.__new__(Sequences)
        after.__dict__.update(labs[-1].__dict__)
        after.theta = labs[-1].theta + rate * labs[-1].gradient / labs[-1].gradient.norm()
        labs.append(after)
    return labs


def figures(rate: float, ages: tuple[int, ...], policies: int) -> Iterator[Figure]:
    runs = [trained(Sequences(seed=seed), max(ages), rate) for seed in range(policies)]
    length = sum(labs[-1].gradient.square().sum().item() for labs in runs) ** 0.5
    fresh = {name: sum(Sampled.of(labs[-1], labs[-1]).moments(*way)[1] for labs in runs) for name, way in WAYS.items()}
    for age in ages:
        sampled = [Sampled.of(labs[-1], labs[-1 - age]) for labs in runs]
        title = f"steps of {rate:g}, age {age}"
        yield Figure(f"{title}: 1/ESS", policies / sum(one.effective for one in sampled), "")
        for name, way in WAYS.items():
            means, squares, told = zip(*(one.moments(*way) for one in sampled), strict=True)
            off = sum((mean - one.policy.gradient).square().sum() for mean, one in zip(means, sampled, strict=True))
            label = f"{title}: {name}: bias", off.item() ** 0.5 / length, "of ‖∇J‖"
            yield at_most(*label, 1e-6) if name in UNBIASED else Figure(*label)
            second = sum(squares)
            yield Figure(f"{title}: {name}: second moment", second / fresh["RLOO"], "× fresh RLOO's")
            if name in UNBIASED:
                yield Figure(f"{title}: {name}: growth of the second moment", second / fresh[name], "× fresh")
                foretold = second / sum(square / growth for square, growth in zip(squares, told, strict=True))
                yield Figure(f"{title}: {name}: growth by norms", foretold, "× fresh")


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    rates, ages, policies = (RATES[:1], AGES[:2], 2) if quick else (RATES, AGES, POLICIES)
    write("old-quick" if quick else "old", [one for rate in rates for one in figures(rate, ages, policies)])


if __name__ == "__main__":
    main()
