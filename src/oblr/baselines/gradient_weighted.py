"""The optimal baseline of OBLR-PO, estimated leave-one-out (arXiv 2511.23310, Theorem 7)."""

from torch import Tensor

from oblr.baselines.leave_one_out import leave_one_out_means


class GradientWeightedBaseline:
    """``A_i = R_i − b_i`` with ``b_i = Σ_{j≠i} w_j R_j / Σ_{j≠i} w_j`` and ``w_j = ρ_j² ‖∇θ log π(o_j|q)‖²``.

    Among baselines that depend on the prompt alone, ``E[wR]/E[w]`` gives the group gradient its smallest variance.
    Leaving ``o_i`` out of its own baseline keeps the gradient unbiased for any weights.

    Degenerate cases: equal weights give RLOO. If all weights but ``w_i`` are zero, ``b_i`` is the others' plain mean.
    """

    needs_norms = True
    leave_one_out = True

    def __call__(self, rewards: Tensor, weights: Tensor) -> Tensor:
        return (rewards - leave_one_out_means(rewards, weights)).to(rewards.dtype)
