"""A learning rate that the gradient's noise governs: Theorem 4 of arXiv 2511.23310 with its signal held."""

from typing import Any

from oblr.batch.types import Moments
from oblr.kinds import Count, PositiveShare, Rate, checked
from oblr.schedules.base import Schedule


@checked("schedule")
class NoiseSchedule(Schedule):
    """``η_t = η₀ · min(1, E₀/‖ĝ_t‖²)^p``, where ``E₀`` is the mean ``‖ĝ‖²`` of the first steps.

    Theorem 4's rate ``‖∇J‖²/(L·E‖ĝ‖²)`` is best for one step. It falls for two reasons. Where the noise grows, a step
    goes further astray and has to be shorter. Where the signal ``‖∇J‖²`` sinks, one step has little to gain; but many
    such steps add up their signal while their noise partly cancels, and rates that give up lose the long run
    (short-horizon bias, arXiv 1803.02021). So this rate keeps the first reason alone: it is the theorem's over what
    that was at the start, with the signal held.

    The noise is that of the very step. Along a given ``ĝ`` the best rate is ``⟨∇J, ĝ⟩/(L‖ĝ‖²)``; noise makes ``ĝ``
    longer and adds nothing to the product, which stays near ``‖∇J‖²``. ``‖ĝ‖²`` is known exactly, needs no difference
    of two large numbers as the SNR does, and no second group: N = 1 will do. Long gradients count for less than others,
    as with clipping: their mean is no longer quite that of ``∇J``. ``p = 1/2`` is clipping at the start's norm.

    Args:
        eta0: ``η₀``, the learning rate of the start.
        level_steps: first live steps, which say what ``E₀`` is; they are taken with ``η₀``, so that nothing shortens
            them. Few of them make an ``E₀`` that differs much between seeds.
        power: p, exponent of the factor: 1 is Theorem 4's, 0.5 is clipping.
    """

    def __init__(self, eta0: Rate, level_steps: Count = 5, power: PositiveShare = 1.0):
        self.eta0, self.level_steps, self.power = eta0, level_steps, power
        self.level, self.known = 0.0, 0  # E₀ so far, and of how many steps

    @property
    def words(self) -> str:
        power = "" if self.power == 1 else f"^{self.power:g}"
        return f"η₀ = {self.eta0:g} × noise factor min(1, E₀/‖ĝ‖²){power}"

    def __call__(self, moments: Moments, step: int) -> float:
        square = moments.mean_square
        if square == 0:  # nothing moves, and nothing is said of the noise
            return self.eta0
        if self.known < self.level_steps:
            self.known += 1
            self.level += (square - self.level) / self.known
            return self.eta0
        return self.eta0 * min(1.0, self.level / square) ** self.power

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "known": self.known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.level, self.known = state["level"], state["known"]
