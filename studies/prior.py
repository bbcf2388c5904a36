"""How near the optimum does a baseline come, and which responses need a backward pass? Simulated, and on real policies.

    python studies/prior.py [--quick]

- **Simulated**: steps of 16 prompts × 8 responses, of which a share is right; wrong ones have ``ratio`` times the
  weight of right ones. Second moments ``(R_i − b_i)² w_i`` over those of the optimal baseline ``E[wR]/E[w]``.
- **On policies** out of runs at the constant rate that the contest has tuned: 16 prompts, 256 responses to each, in 32
  groups of 8. The optimum of a prompt is ``Σ n R/Σ n`` over its other 248 responses. Priors learn from the groups
  before, at a policy that stands still, which flatters them a little.
- **Thinning**: a response is kept with probability ``p_i = min(1, c s_i)`` and counts ``1/p_i`` times, which leaves the
  gradient unbiased; ``c`` is such that half of the tokens with an advantage are expected to be kept. The noise of
  responses is then ``Σ A_i² n_i/p_i``, given over that of all, ``Σ A_i² n_i``. ``A`` is the prior's, and ``s`` random,
  ``|A|``, or ``|A| √(n̂/length)``, which is best if ``n̂`` is. ``n̂`` is exact, which only a backward pass tells; of
  ``logit``, which a forward pass does; or ``Σ_t (1 − π_t)²`` of the probabilities that the engine has told.

Intervals are 95 %, from resampled prompts. ``--quick``: few responses of one task.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import neighbours  # noqa: F401
import torch
from contest import Case, Runs
from figures import Figure, at_most, write
from lightning import Trainer
from lost import HORIZON, TASKS
from results import CONTEST, RIVAL
from tasks import DRAWS, with_interval
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import composed, observed

from callbacks.observer import Observer, rollout_data
from oblr.baselines.base import Baseline, Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.packing import pack
from oblr.batch.types import RolloutBatch
from oblr.gradnorm.measure import GradNorms
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.policy.step import PolicyModule
from oblr.run.randomness import derived_seed

SIZE, PROMPTS, RESPONSES, STUDIED, SEEDS = 8, 16, 256, (0, 10, 30, 90), (11,)
#: Responses that are scored together.
TOGETHER = 64
SHARES = {0.5: 1.2, 0.9: 1.2, 0.97: 1.35}  # and the most that a prior may be from the optimum
REWARDS = {"0/1": (0.0, 1.0), "-1/0": (-1.0, 0.0), "-1/1": (-1.0, 1.0)}
KEPT = 0.5


def baselines() -> dict[str, Baseline]:
    priors = {f"prior={prior}": GradientWeightedBaseline(prior=prior) for prior in ("past", "step")}
    return {"rloo": RLOOBaseline(), "none": NoBaseline(), "gradient_weighted": GradientWeightedBaseline()} | priors


def simulated(steps: int) -> Iterator[Figure]:
    for share, bound in SHARES.items():
        for ratio in (1.0, 10.0, 50.0):
            for name, (wrong, right) in REWARDS.items():
                found = over_optimum(share, ratio, wrong, right, steps)
                case = f"simulated, {share:.0%} right, ratio {ratio:g}, rewards {name}"
                for baseline, value in found.items():
                    figure = at_most(f"{case}: {baseline}", value, "× optimum", bound)
                    yield figure if baseline == "prior=past" else replace(figure, target="", holds=None)


def over_optimum(
    share: float, ratio: float, wrong: float, right: float, steps: int, ahead: int = 20
) -> dict[str, float]:
    """Second moments over the optimum's, after ``ahead`` steps that are only learnt from."""
    generator, chosen = torch.Generator().manual_seed(0), baselines()
    optimum = (share * right + (1 - share) * ratio * wrong) / (share + (1 - share) * ratio)
    moments, best = dict.fromkeys(chosen, 0.0), 0.0
    for step in range(ahead + steps):
        drawn = torch.rand(PROMPTS, SIZE, generator=generator) < share
        rewards, weights = torch.where(drawn, right, wrong), torch.where(drawn, 1.0, ratio).double()
        groups = Groups(rewards, weights, torch.ones(rewards.shape), rewards, step_weights=weights)
        for name, baseline in chosen.items():
            if step >= ahead:
                moments[name] += (baseline(groups).double().square() * weights).mean().item()
            baseline.learn(groups)
        best += (step >= ahead) * ((rewards - optimum).double().square() * weights).mean().item()
    return {name: moment / best for name, moment in moments.items()}


class Places(Observer):
    """Before some of the steps: parameters, and many responses to the same held-out prompts."""

    def __init__(self, steps: tuple[int, ...], responses: int, seed: int):
        self.steps, self.responses, self.seed = steps, responses, seed
        self.taken: list[tuple[int, Tensor, RolloutBatch]] = []

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        if trainer.current_epoch in self.steps:
            data = rollout_data(trainer)
            problems = [data.held_out[i] for i in range(len(data.held_out))]
            seeds = [derived_seed("prior", self.seed, trainer.current_epoch, q) for q in range(len(problems))]
            sampling = replace(data.sampling, n=self.responses)
            answered = RolloutBatch(data.rollouts(problems, sampling, seeds), self.responses, 0)
            parameters = parameters_to_vector(policy.scorer.parameters()).detach().clone()
            self.taken.append((trainer.current_epoch, parameters, answered))


@dataclass(frozen=True)
class Place:
    """P prompts, K responses to each in groups of G; float64 [K/G, P, G], group after group.

    Attributes:
        norms: ``n_i``.
        proxies: what may stand for them.
    """

    rewards: Tensor
    norms: Tensor
    lengths: Tensor
    proxies: Mapping[str, Tensor]

    @property
    def optimum(self) -> Tensor:
        """``Σ n R/Σ n`` over the prompt's other groups, of each group, [K/G, P, 1]."""
        products, weights = ((x * self.norms).sum(2, keepdim=True) for x in (self.rewards, torch.ones_like(self.norms)))
        return (products.sum(0) - products) / (weights.sum(0) - weights)

    def steps(self) -> Iterator[Groups]:
        for rewards, norms, lengths in zip(self.rewards, self.norms, self.lengths, strict=True):
            yield Groups(rewards, norms, lengths, rewards, step_weights=norms)


def place_of(batch: RolloutBatch, model: PolicyModel) -> Place:
    """What a batch of these responses is to the policy, measured on its device."""
    found: dict[str, list[Tensor]] = {"exact": [], "logit": [], "engine": []}
    device = next(model.parameters()).device
    for start in range(0, len(batch.rollouts), TOGETHER):
        packed = pack(batch.rollouts[start : start + TOGETHER]).to(device)
        for tier in ("exact", "logit"):
            found[tier].append(GradNorms(tier).first_pass(model, model.lm, packed)[1])
        missing = (1 - packed.behaviour_logprobs.double().exp()).square()
        ids = packed.target_segments.ids
        found["engine"].append(torch.zeros(int(ids.max()) + 1).to(missing).index_add(0, ids, missing))

    def grouped(values: Tensor) -> Tensor:
        return values.double().cpu().view(batch.n_groups, -1, SIZE).transpose(0, 1)

    exact, *proxies = (grouped(torch.cat(values)) for values in found.values())
    return Place(
        grouped(batch.rewards), exact, grouped(batch.lengths), dict(zip(list(found)[1:], proxies, strict=True))
    )


def advantages_of(place: Place) -> dict[str, Tensor]:
    """By every baseline, [K/G, P, G]; ``optimum``'s too."""
    chosen, found = baselines(), {"optimum": [place.rewards - place.optimum]}
    for groups in place.steps():
        for name, baseline in chosen.items():
            found.setdefault(name, []).append(baseline(groups)[None])
            baseline.learn(groups)
    return {name: torch.cat(values) for name, values in found.items()}


def keep(score: Tensor, lengths: Tensor, share: float) -> Tensor:
    """``p_i = min(1, c s_i)`` with which a share of the tokens that have a score is expected to stay."""
    if not (score > 0).any():
        return score
    wanted, low, high = share * lengths[score > 0].sum(), 0.0, 1.0 / score[score > 0].min().item()
    for _ in range(100):
        middle = (low + high) / 2
        kept = ((middle * score).clamp(max=1) * lengths).sum()
        low, high = (middle, high) if kept < wanted else (low, middle)
    return (high * score).clamp(max=1)


def thinned(place: Place, advantages: Tensor) -> dict[str, Tensor]:
    """``Σ A_i² n_i/p_i`` of each prompt [P], by how responses are chosen; ``all`` of them first."""
    size = advantages.abs()
    scores = {"random": (size > 0).double(), "|A|": size}
    for name, norms in {"exact": place.norms, **place.proxies}.items():
        scores[f"|A| √(n̂/length), {name}"] = size * (norms / place.lengths).sqrt()
    terms = size.square() * place.norms
    found = {"all": terms.sum((0, 2))}
    for name, score in scores.items():
        chances = torch.stack([keep(*step, KEPT) for step in zip(score, place.lengths, strict=True)])
        found[name] = torch.where(terms > 0, terms / chances, 0.0).sum((0, 2))
    return found


def figures_of(name: str, place: Place) -> Iterator[Figure]:
    drawn = torch.randint(
        len(place.rewards[0]), (DRAWS, len(place.rewards[0])), generator=torch.Generator().manual_seed(0)
    )

    def ratio(title: str, unit: str, above: Tensor, below: Tensor) -> Figure:
        """Of sums over prompts, [P] both."""
        return with_interval(
            f"{name}: {title}", unit, above.sum() / below.sum(), above[drawn].sum(1) / below[drawn].sum(1)
        )

    advantages = advantages_of(place)
    moments = {k: (a.square() * place.norms).sum((0, 2)) for k, a in advantages.items()}
    live = (place.rewards != place.rewards[..., :1]).any(-1)
    yield Figure(f"{name}: right", 100 * place.rewards.mean().item(), "%")
    yield Figure(f"{name}: groups of unequal rewards", 100 * live.double().mean().item(), "%")
    for baseline in moments:
        if baseline != "rloo":
            yield ratio(f"{baseline}: second moment, over RLOO's", "×", moments[baseline], moments["rloo"])
        if baseline != "optimum":
            yield ratio(f"{baseline}: second moment, over the optimum's", "×", moments[baseline], moments["optimum"])
    noise = thinned(place, advantages["prior=past"])
    for scheme in [*noise][1:]:
        yield ratio(f"half of the tokens, by {scheme}: noise", "× all", noise[scheme], noise["all"])


def task_figures(task: str, studied: tuple[int, ...], prompts: int, responses: int) -> Iterator[Figure]:
    rate = Runs(CONTEST, makes=False).tuned(Case(task, RIVAL, HORIZON))
    model = PolicyModel(load_model(str(composed(["paths.output_dir=unused"], task).policy.path), "float32"), 1.0)
    for seed in SEEDS:
        places = Places(studied, responses, seed)
        settings = (f"eta0={rate:g}", f"steps={studied[-1] + 1}", f"data.held_out.size={prompts}", f"seed={seed}")
        observed((*RIVAL.overrides, *settings), places, task)
        for step, parameters, batch in places.taken:
            vector_to_parameters(parameters, model.parameters())
            yield from figures_of(f"{task}, after {step} steps", place_of(batch, model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    if parser.parse_args().quick:
        return write("prior-quick", [*simulated(20), *task_figures("pocket", (0, 1), 4, 32)])
    figures = [figure for task in TASKS for figure in task_figures(task, STUDIED, PROMPTS, RESPONSES)]
    write("prior", [*simulated(400), *figures])


if __name__ == "__main__":
    main()
