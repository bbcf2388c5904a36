"""What a step has found, of all ranks, and the numbers of it that are logged."""

from torch import Tensor

from oblr.run.ranks import of_run
from oblr.types import LogprobGap, Moments, RolloutBatch, StepReport


def put_together(batch: RolloutBatch, found: Tensor, gap: LogprobGap, moments: Moments) -> StepReport:
    """The report of all ranks. Collective.

    Args:
        batch: of this rank.
        found: float64 [groups of a rank, G, 12]: of each response its score, reward, length, whether its group is live,
            its group's ``‖g_q‖²`` and problem, its advantage, coefficient, log ratio, squared norm, weight and entropy.
    """
    ranks = of_run()
    scores, rewards, lengths, *columns = ranks.gather(found).unbind(-1)
    alive, squares, problems, advantages, coefficients, log_ratios, norms, weights, entropies = columns
    live = alive[:, 0].bool()
    return StepReport(
        batch=batch,
        first=ranks.rank * batch.n_groups,
        problems=problems[:, 0].long(),
        scores=scores.float(),
        rewards=rewards.float(),
        greedy_rewards=None if batch.greedy_rewards is None else ranks.gather(batch.greedy_rewards),
        lengths=lengths.long(),
        finished=ranks.gather(batch.finished),
        live=live,
        square_norms=norms,
        weights=weights,
        advantages=advantages.float(),
        coefficients=coefficients,
        group_squares=squares[:, 0],
        log_ratios=log_ratios,
        entropy=(entropies[live].sum() / lengths[live].sum()).item(),
        logprob_gap=gap,
        moments=moments,
    )


def tags(report: StepReport) -> dict[str, float]:
    """Plain numbers, which are the same on all ranks: Lightning would gather tensors, wherever they lie."""
    return {
        "train/reward": report.scores.mean().item(),
        "train/live_groups": report.live.float().mean().item(),
        "train/entropy": report.entropy,
        "train/lr": report.lr,
        **{f"rollout/logprob_gap_{name}": value for name, value in report.logprob_gap._asdict().items()},
        "rollout/truncated": 1 - report.finished.float().mean().item(),
        "rollout/length": report.lengths.float().mean().item(),
    }
