"""Many steps on a quadratic, exactly: what rates make of a gradient whose directions differ in curvature and noise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, minimize_scalar

#: Learning rate of a step from its signal ``‖∇J‖²``, its noise ``tr H/N``, and its number.
Rule = Callable[[float, float, int], float]
#: Rules of one shape, by the ``η₀`` that is to be tuned.
Family = Callable[[float], Rule]


@dataclass(frozen=True)
class Quadratic:
    """``J = −½ Σ_i λ_i x_i²``, of whose gradient a step sees each direction with noise of its own.

    ``E x_i²`` after a step follows from that before it, ``(1 − η λ_i)² E x_i² + η² h_i``: no sampling.

    Attributes:
        curvature: ``λ`` [D].
        start: ``E x²`` at the beginning, [D].
        noise: ``h`` of a step's gradient, ``H_ii/N``, [D].
    """

    curvature: np.ndarray
    start: np.ndarray
    noise: np.ndarray

    @classmethod
    def of_spectrum(cls, n_snr: float, condition: float = 1000.0, size: int = 30) -> "Quadratic":
        """Curvatures spread evenly in their logarithm up to 1, each direction with the same share of the loss, and
        noise in proportion to curvature, as where both come of one Fisher matrix; ``n_snr`` at the start."""
        curvature = np.logspace(0, -np.log10(condition), size)
        start = 2 / (size * curvature)
        signal = (curvature**2 * start).sum()
        return cls(curvature, start, curvature / curvature.sum() * signal / n_snr)

    def after(self, square: np.ndarray, rate: float) -> np.ndarray:
        """``E x²`` [D] after one step."""
        return (1 - rate * self.curvature) ** 2 * square + rate**2 * self.noise

    def progress(self, rule: Rule, steps: int) -> float:
        """Share of the loss at the start that so many steps remove; −inf where they diverge."""
        square = self.start
        for step in range(steps):
            signal = (self.curvature**2 * square).sum()
            square = self.after(square, rule(signal, self.noise.sum(), step))
            if not square.max() < 1e6 * self.start.max():
                return -np.inf
        return float(1 - (self.curvature * square).sum() / (self.curvature * self.start).sum())


def tuned(problem: Quadratic, family: Family, steps: int) -> tuple[float, float]:
    """The best ``η₀`` of a family and the progress that it makes.

    Raises:
        ValueError: it lies at an end of what is searched, 2^-14 to 2^6.
    """

    def loss(log: float) -> float:
        return -max(problem.progress(family(2.0**log), steps), -1e6)

    grid = np.arange(-14, 6.5, 0.5)
    first = int(np.argmin([loss(log) for log in grid]))
    if first in (0, len(grid) - 1):
        raise ValueError(f"the best η₀ is not inside 2^-14 to 2^6: {2.0 ** grid[first]:.3g}")
    found = minimize_scalar(loss, bounds=(grid[first - 1], grid[first + 1]), method="bounded")
    return float(2.0**found.x), float(-found.fun)


def best(problem: Quadratic, steps: int, start: float, knots: int = 8) -> tuple[list[float], float]:
    """The rates of most progress among those whose logarithms are straight between so many knots, and that progress."""
    at = np.linspace(0, steps - 1, min(knots, steps))

    def scheduled(logs: np.ndarray) -> Rule:
        return lambda signal, noise, step: float(2.0 ** np.interp(step, at, logs))

    def loss(logs: np.ndarray) -> float:
        progress = problem.progress(scheduled(logs), steps)
        return np.log(1 - progress) if np.isfinite(progress) else 1e3

    found = minimize(loss, [np.log2(start)] * len(at), method="Powell", options={"maxiter": 50, "ftol": 1e-7})
    return [float(scheduled(found.x)(0.0, 0.0, step)) for step in range(steps)], float(1 - np.exp(found.fun))
