"""What do the tasks differ in? Rewards, gradient norms and gradient noise of their untrained policies.

    python studies/tasks.py [--quick]

Of every task 16 responses are sampled to each prompt: two groups of G = 8.

- Spread and correlations of ``n_i`` are those inside a prompt, means over prompts; a prompt whose rewards are all
  equal has no correlation with them.
- The noise of a group's gradient, ``tr H``, has two parts: prompts that pull apart, and responses drawn by chance. Two
  groups of one prompt share the first alone, so that their inner product tells them apart. The gradients are those of
  the leave-one-out baseline with exact norms. N·SNR at N = 16 follows from the same inner products.
- Allotment: eight more responses to each prompt on average, given by what the first eight say of its noise, over eight
  more to everyone: what is left of the noise within prompts. They go as the root of ``E (R_i − b_i)² n_i`` (Neyman),
  with exact norms, or as the spread of the rewards, which is ``√(p(1 − p))`` where a share ``p`` is right, as rivals
  have it. This is judged on eight others that had no part in it.

Intervals are 95 %, from resampled prompts. ``--quick`` takes fewer prompts.
"""

from collections.abc import Iterator

import neighbours  # noqa: F401
import torch
from figures import Estimate, Figure, asked_to_be_quick, write
from hydra.utils import instantiate
from tiers import GROUP_SIZE, Policy, measure, sample
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef
from training import TASKS, composed

from oblr.baselines.base import live_groups
from oblr.baselines.leave_one_out import leave_one_out_means
from oblr.batch.packing import pack
from oblr.batch.types import RolloutBatch
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel

RESPONSES, PROMPTS_PER_STEP, DRAWS = 2 * GROUP_SIZE, 16, 2000


def policy_of(task: str, prompts: int) -> Policy:
    cfg = composed(["paths.output_dir=unused"], task)
    problems = instantiate(cfg.data.train)
    return Policy(
        *(task, cfg.policy.path, [problems[i] for i in range(prompts)], RESPONSES, cfg.rollout.max_new_tokens),
        instantiate(cfg.reward),
    )


def group_gradients(batch: RolloutBatch, norms: Tensor, model: PolicyModel) -> Tensor:
    """``g_q = (1/G) Σ_i (R_i − b_i) ∇ log π(o_i|q)`` of two groups to each prompt, float32 [P, 2, D]."""
    advantages = advantages_of(batch.rewards, norms).flatten()
    gradients = []
    for first in range(0, len(batch.rollouts), GROUP_SIZE):
        packed = pack(batch.rollouts[first : first + GROUP_SIZE])
        of_tokens = advantages[first : first + GROUP_SIZE][packed.target_segments.ids]
        (model(packed).logprobs * of_tokens).sum().div(GROUP_SIZE).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        model.zero_grad()
    return torch.stack(gradients).view(batch.n_groups, 2, -1)


def parts_of_noise(products: Tensor) -> Tensor:
    """Signal ``‖∇J‖²``, noise between prompts, and noise within them, [3]; each unbiased.

    Args:
        products: of the groups' gradients, [P, 2, P, 2].
    """
    prompts = len(products)
    own = products.diagonal(dim1=0, dim2=2)  # [2, 2, P]
    square, same = own.diagonal().mean(), own[0, 1].mean()
    signal = (products.sum() - own.sum()) / (4 * prompts * (prompts - 1))
    return torch.stack([signal, same - signal, square - same])


def advantages_of(rewards: Tensor, norms: Tensor) -> Tensor:
    """``R_i − b_i`` of two groups to each prompt, from rewards and norms [P, 2 G], float64 [P, 2, G]."""
    halves = (len(rewards), 2, GROUP_SIZE)
    rewards = rewards.double().view(halves)
    return rewards - leave_one_out_means(rewards, norms.view(halves))


def left_by_allotment(shares: Tensor, moments: Tensor) -> Tensor:
    """Noise of G responses and G more in proportion to their prompt's share, over that of 2 G to everyone.

    What either group says is judged by the other; mean of both ways.

    Args:
        shares: of a prompt, by either group, [..., P, 2].
        moments: second moment of a response, by either group, [..., P, 2].
    """
    groups = 1 + shares / shares.mean(-2, keepdim=True)
    left = 2 * (moments.flip(-1) / groups).mean(-2) / moments.flip(-1).mean(-2)
    return left.mean(-1)


def with_interval(name: str, unit: str, value: Tensor, resampled: Tensor) -> Estimate:
    low, high = resampled.double().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(name, value.item(), unit, low=low, high=high)


def figures_of(task: str, prompts: int) -> Iterator[Figure]:
    policy = policy_of(task, prompts)
    batch = sample(policy)
    model = PolicyModel(load_model(str(policy.path), "float32"), 1.0)
    norms = measure(batch, model)["exact"]
    groups = batch.rewards.view(-1, GROUP_SIZE)
    lengths = batch.lengths.double()
    by_prompt = {
        "reward": (batch.rewards.double().mean(1), ""),
        "live groups": (100 * live_groups(groups).double().view(prompts, -1).mean(1), "%"),
        "response tokens": (lengths.mean(1), ""),
        "spread of n_i": (norms.std(1, correction=0) / norms.mean(1), "× mean"),
        "correlation of n_i with reward": (pearson_corrcoef(norms.T, batch.rewards.double().T), ""),
        "correlation of n_i with length": (pearson_corrcoef(norms.T, lengths.T), ""),
    }
    draws = torch.randint(prompts, (DRAWS, prompts), generator=torch.Generator().manual_seed(0))
    for name, (values, unit) in by_prompt.items():
        yield with_interval(f"{task}: {name}", unit, values.nanmean(), values[draws].nanmean(1))
    shortest, longest = lengths.flatten().quantile(torch.tensor([0.01, 0.99], dtype=torch.float64)).tolist()
    yield Figure(f"{task}: length, 1 % quantile", shortest, "tokens")
    yield Figure(f"{task}: length, 99 % quantile", longest, "tokens")

    flat = group_gradients(batch, norms, model).flatten(0, 1)
    products = (flat @ flat.T).double().view(prompts, 2, prompts, 2)
    found = parts_of_noise(products)
    # Halves of the prompts differ from the whole as much as the whole does from the truth.
    halves = [torch.randperm(prompts, generator=torch.Generator().manual_seed(k))[: prompts // 2] for k in range(DRAWS)]
    drawn = torch.stack([parts_of_noise(products[half][:, :, half]) for half in halves])

    def share_within(parts: Tensor) -> Tensor:
        return 100 * parts[..., 2] / (parts[..., 1] + parts[..., 2])

    def n_snr(parts: Tensor) -> Tensor:
        return PROMPTS_PER_STEP * parts[..., 0] / (parts[..., 1] + parts[..., 2])

    yield with_interval(f"{task}: noise within prompts", "% of tr H", share_within(found), share_within(drawn))
    yield with_interval(f"{task}: N·SNR at N = {PROMPTS_PER_STEP}", "", n_snr(found), n_snr(drawn))

    moments = (advantages_of(batch.rewards, norms).square() * norms.view(prompts, 2, GROUP_SIZE)).mean(2)
    spread = batch.rewards.double().view(prompts, 2, GROUP_SIZE).std(2, correction=0)
    for name, shares in {"norms": moments.sqrt(), "spread of rewards": spread}.items():
        left, drawn = left_by_allotment(shares, moments), left_by_allotment(shares[draws], moments[draws])
        yield with_interval(f"{task}: noise left, allotted by {name}", "× equal", left, drawn)


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    figures = [figure for task in TASKS for figure in figures_of(task, 8 if quick else 96)]
    write("tasks-quick" if quick else "tasks", figures)


if __name__ == "__main__":
    main()
