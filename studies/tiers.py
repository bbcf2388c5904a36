"""What do the tiers lose? Their weights beside the exact ``n_i``, on the same on-policy groups of G = 8 responses.

    python studies/tiers.py [--quick]

- Rank correlation: Spearman's, inside a group, between a tier's weights and ``n_i``; mean over groups.
- Second moment: ``(R_i − b_i)² n_i`` with the leave-one-out baseline that has the tier's weights, relative to uniform
  weights (RLOO). These baselines are all unbiased: what one takes off the second moment, it takes off the variance of
  a sample's gradient. (Left out: the baselines of a group share samples, so its gradients are not quite independent.)
- Fraction kept: a tier's reduction of the second moment below RLOO's over that of ``exact``.
- What it costs to estimate the baseline from seven responses: the same with a baseline from the other 56 responses to
  the prompt. Means are over all groups: one of equal rewards adds to this baseline's moment, to the others' nothing.

Intervals are 95 %, by bootstrap over prompts. ``--quick`` takes fewer prompts and the pocket policy alone; what
SmolLM2 needs, ``benchmarks/smollm2.py`` says.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import neighbours  # noqa: F401
import torch
from figures import ROOT, Estimate, Figure, at_most, write
from matplotlib.figure import Figure as Picture
from omegaconf import OmegaConf
from smollm2 import smollm2
from torch import Tensor, nn
from torchmetrics.functional import spearman_corrcoef

from oblr.baselines.base import live_groups
from oblr.baselines.leave_one_out import leave_one_out_means
from oblr.batch.packing import pack
from oblr.batch.types import Rollout, RolloutBatch, Sampling
from oblr.data.procedural import ReasoningGymProblems
from oblr.gradnorm.kinds import rms_norm_epsilon
from oblr.gradnorm.measure import GradNorms
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.problem import Problem
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.base import Reward, score
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rollout.hf import HFEngine
from oblr.run.randomness import derived_seed

GROUP_SIZE, SEED, DRAWS = 8, 1, 2000
TIERS = ("exact", "sketch", "logit", "length", "uniform")
COLOURS = {"exact": "C0", "sketch": "C1", "logit": "C2", "length": "C3", "norm_layers": "C4"}
APPROXIMATE = ("sketch", "logit", "length", "norm_layers")
#: Baselines from the other groups of the prompt.
POOLED = {"uniform": "mean of 56 others", "exact": "weighted mean of 56 others"}


@dataclass(frozen=True)
class Policy:
    """A model and what to sample from it; the ``responses`` to a problem form groups of :data:`GROUP_SIZE`."""

    name: str
    path: Path | str
    problems: list[Problem]
    responses: int
    max_new_tokens: int
    reward: Reward = field(default_factory=lambda: ReasoningGymReward(AnswerFormat()))


def pocket(prompts: int) -> Policy:
    """The demo's policy and problems."""
    data = OmegaConf.load(ROOT / "conf" / "data" / "chain_sum.yaml").train
    problems = ReasoningGymProblems(data.task, prompts, SEED, data.template, data.params)
    return Policy("pocket", ROOT / "models" / "pocket", list(problems), 64, 64)


def smollm2_135m(prompts: int) -> Policy:
    """Sums of two one-digit numbers after an example: harder ones it hardly ever gets right."""
    path = smollm2()
    chat = [("system", "Add."), ("user", "3 + 4"), ("assistant", "3 + 4 = 7. Answer: 7"), ("user", "{expression}")]
    template = load_tokenizer(str(path)).apply_chat_template(
        [{"role": role, "content": content} for role, content in chat], tokenize=False, add_generation_prompt=True
    )
    params = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    problems = ReasoningGymProblems("chain_sum", prompts, SEED, template, params)
    return Policy("SmolLM2-135M", path, list(problems), GROUP_SIZE, 32)


def sample(policy: Policy) -> RolloutBatch:
    """Scored responses at temperature 1, problem by problem."""
    tokenizer = load_tokenizer(str(policy.path))
    engine = HFEngine(str(policy.path), "float32", batch_size=128)
    engine.start()
    engine.weight_version = 0  # its folder's weights are the policy's
    prompts = [tokenizer.encode(problem.prompt) for problem in policy.problems]
    sampling = Sampling(policy.responses, 1.0, policy.max_new_tokens, (tokenizer.eos_token_id,))
    rollouts = []
    seeds = [derived_seed(SEED, q) for q in range(len(prompts))]
    for problem, prompt, group in zip(policy.problems, prompts, engine.generate(prompts, sampling, seeds), strict=True):
        for completion in group:
            text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            reward = score(policy.reward, problem, text, completion).value
            rollouts.append(Rollout(problem, prompt, completion, text, reward))
    return RolloutBatch(rollouts, policy.responses, 0)


@contextmanager
def norm_layers_alone(lm: nn.Module) -> Iterator[None]:
    """Train the norm layers' scales, and nothing else."""
    scales = {module.weight for module in lm.modules() if rms_norm_epsilon(module) is not None}
    others = [p for p in lm.parameters() if p not in scales]
    for p in others:
        p.requires_grad_(False)
    yield
    for p in others:
        p.requires_grad_(True)


def measure(batch: RolloutBatch, model: PolicyModel) -> dict[str, Tensor]:
    """Every tier's weights, and those of the norm layers [prompts, responses]."""
    parts: dict[str, list[Tensor]] = {tier: [] for tier in (*TIERS, "norm_layers")}
    for step in range(0, batch.n_groups, 2):
        packed = pack(batch.rollouts[step * batch.group_size : (step + 2) * batch.group_size])
        for tier in TIERS:
            parts[tier].append(GradNorms(tier).first_pass(model, model.lm, packed, step)[1])
        with norm_layers_alone(model.lm):
            parts["norm_layers"].append(GradNorms().first_pass(model, model.lm, packed)[1])
    return {tier: torch.cat(weights).view(-1, batch.group_size) for tier, weights in parts.items()}


def relative_error(batch: RolloutBatch, exact: Tensor, model: PolicyModel) -> float:
    """Largest relative error of the ``n_i`` of four sequences, against one plain backward for each."""
    errors = []
    for rollout, norm in zip(batch.rollouts[:4], exact.flatten().tolist(), strict=False):
        model.zero_grad()
        model(pack([rollout])).logprobs.sum().backward()
        errors.append(abs(norm / sum(p.grad.double().square().sum().item() for p in model.parameters()) - 1))
    return max(errors)


def rank_correlations(weights: Tensor, exact: Tensor) -> Tensor:
    """Mean over each prompt's groups [prompts]; 0 in a group of equal weights."""
    # The same response twice has the same weight, but for rounding.
    ranked = [x.clamp(min=1e-6).log().round(decimals=3).view(-1, GROUP_SIZE).T for x in (weights, exact)]
    return spearman_corrcoef(*ranked).double().view(len(exact), -1).mean(1)


def second_moments(rewards: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Mean of ``(R_i − b_i)² n_i`` over each prompt's responses [prompts], by baseline."""
    groups = (len(rewards), -1, GROUP_SIZE)
    rewards, exact = rewards.double().view(groups), weights["exact"].view(groups)
    baselines = {tier: leave_one_out_means(rewards, w.view(groups)) for tier, w in weights.items()}
    if rewards.shape[1] > 1:
        for tier, name in POOLED.items():
            sums = [x.sum(2, keepdim=True) for x in (weights[tier].view(groups) * rewards, weights[tier].view(groups))]
            products, total = (x.sum(1, keepdim=True) - x for x in sums)
            baselines[name] = products / total
    return {name: ((rewards - b).square() * exact).mean((1, 2)) for name, b in baselines.items()}


def estimate(name: str, unit: str, statistic: Callable[..., Tensor], *values: Tensor) -> Estimate:
    """A statistic of means over prompts of ``values`` [prompts], and its interval from resampled prompts."""
    prompts = len(values[0])
    draws = torch.randint(prompts, (DRAWS, prompts), generator=torch.Generator().manual_seed(SEED))
    value = statistic(*(v.mean() for v in values)).item()
    resampled = statistic(*(v[draws].mean(1) for v in values))
    low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=resampled.dtype)).tolist()
    return Estimate(name, value, f"{unit} [{low:.3g}, {high:.3g}]".strip(), low=low, high=high)


def evaluate(policy: Policy) -> tuple[list[Figure], dict[str, Tensor]]:
    """All figures of a policy, and the weights that they come from."""
    batch = sample(policy)
    model = PolicyModel(load_model(str(policy.path), "float32"), 1.0)
    weights = measure(batch, model)
    exact, rewards = weights["exact"], batch.rewards
    groups, live = exact.view(-1, GROUP_SIZE), live_groups(rewards.view(-1, GROUP_SIZE))
    facts = (
        ("groups", len(groups), f"of {GROUP_SIZE}, {len(exact)} prompts"),
        ("groups whose rewards differ", 100 * live.double().mean().item(), "%"),
        ("right answers", 100 * rewards.mean().item(), "%"),
        ("response tokens", batch.lengths.double().mean().item(), ""),
        ("spread of n_i in a group", (groups.std(1, correction=0) / groups.mean(1)).mean().item(), "× mean"),
    )
    figures = [Figure(f"{policy.name}: {name}", value, unit) for name, value, unit in facts]
    error = relative_error(batch, exact, model)
    figures.append(at_most(f"{policy.name}: relative error of n_i, exact", error, "", 1e-5))
    for tier in APPROXIMATE:
        correlation = rank_correlations(weights[tier], exact)
        figures.append(estimate(f"{policy.name}: rank correlation, {tier}", "", lambda rho: rho, correlation))
    figures.append(Figure(f"{policy.name}: rank correlation, uniform", 0.0, "by definition: no ranks"))
    moments = second_moments(rewards, weights)
    rloo = moments.pop("uniform")
    for name, moment in moments.items():
        figures.append(estimate(f"{policy.name}: second moment, {name}", "× RLOO", torch.div, moment, rloo))
    (achieved,) = (f for f in figures if f.name == f"{policy.name}: second moment, exact")
    unit = "" if achieved.high < 1 else "but exact is not clearly below RLOO"
    for tier in APPROXIMATE:
        name = f"{policy.name}: fraction of variance reduction kept, {tier}"
        figures.append(estimate(name, unit, lambda k, u, e: (u - k) / (u - e), moments[tier], rloo, moments["exact"]))
    return figures, weights


def relative(weights: Tensor) -> Tensor:
    """Weights over their group's mean, of at most about 1,500 responses."""
    groups = weights.view(-1, GROUP_SIZE)
    return (groups / groups.mean(1, keepdim=True)).flatten()[:: max(1, weights.numel() // 1500)]


def draw(results: dict[str, tuple[list[Figure], dict[str, Tensor]]], path: Path) -> None:
    """A row for each policy: weights against exact ones, and second moments."""
    picture = Picture(figsize=(10, 3.4 * len(results)), layout="constrained")
    rows = picture.subplots(len(results), 2, squeeze=False, width_ratios=(3, 4))
    for (points, bars), (policy, (figures, weights)) in zip(rows, results.items(), strict=True):
        exact = relative(weights["exact"])
        for tier in reversed(APPROXIMATE):
            points.scatter(exact, relative(weights[tier]), s=4, alpha=0.4, label=tier, color=COLOURS[tier])
        points.axline((1, 1), slope=1, color="grey", linewidth=0.8)
        points.set(title=f"{policy}: weights over group mean", xscale="log", xlabel="exact", xlim=(1e-2, 10))
        points.set(yscale="log", ylabel="tier", ylim=(1e-2, 10))
        points.legend(fontsize="small", markerscale=3)
        variances = [f for f in figures if isinstance(f, Estimate) and f.name.startswith(f"{policy}: second moment, ")]
        names = [f.name.removeprefix(f"{policy}: second moment, ") for f in variances]
        values = [f.value for f in variances]
        errors = [[f.value - f.low for f in variances], [f.high - f.value for f in variances]]
        bars.barh(names, values, xerr=errors, color=[COLOURS.get(name, "silver") for name in names], capsize=3)
        bars.axvline(1, color="grey", linewidth=0.8)
        bars.invert_yaxis()
        bars.set(title=f"{policy}: second moment relative to RLOO", xlim=(0, None))
        for axis in (points, bars):
            axis.grid(alpha=0.3)
    picture.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    policies = [pocket(16)] if quick else [pocket(128), smollm2_135m(48)]
    results = {policy.name: evaluate(policy) for policy in policies}
    write("tiers-quick" if quick else "tiers", [figure for figures, _ in results.values() for figure in figures])
    if not quick:
        draw(results, ROOT / "docs" / "tiers.png")


if __name__ == "__main__":
    main()
