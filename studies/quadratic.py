"""Many steps on a quadratic, exactly: what rates make of a gradient whose directions differ in curvature and noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar


@dataclass(frozen=True)
class Seen:
    """What a rule knows of a step.

    Attributes:
        signal: ``‖∇J‖²``.
        noise: ``tr H/N``.
        curvature: ``−E ĝᵀ∇²J ĝ``: by how much the slope along a step falls, over the step's length.
        share: of the run that is behind, in [0, 1).
    """

    signal: float
    noise: float
    curvature: float
    share: float

    @property
    def factor(self) -> float:
        """Theorem 4's, ``N·SNR/(1 + N·SNR)``."""
        return self.signal / (self.signal + self.noise)


#: Learning rate of a step.
Rule = Callable[[Seen], float]
#: Groups of a step, over N.
Size = Callable[[Seen], float]
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

    @property
    def most(self) -> float:
        """The largest rate that keeps the steepest direction stable. None goes beyond it: to throw a direction far out,
        for later steps to fetch it back, pays on quadratics alone."""
        return 2 / self.curvature.max()

    def after(self, square: np.ndarray, rate: float) -> np.ndarray:
        """``E x²`` [D] after one step."""
        return (1 - rate * self.curvature) ** 2 * square + rate**2 * self.noise

    def removed(self, square: np.ndarray) -> float:
        """Share of the loss at the start that is gone where ``E x²`` is this."""
        return float(1 - (self.curvature * square).sum() / (self.curvature * self.start).sum())

    def progress(self, rates: Sequence[float]) -> float:
        """Share of the loss at the start that steps with these rates remove."""
        square = self.start
        for rate in rates:
            square = self.after(square, rate)
        return self.removed(square)

    def seen(self, square: np.ndarray, share: float) -> Seen:
        signal = self.curvature**2 * square
        return Seen(signal.sum(), self.noise.sum(), (self.curvature * (signal + self.noise)).sum(), share)

    def rates(self, rule: Rule, steps: int) -> list[float]:
        """What a rule comes to, step by step."""
        square, rates = self.start, []
        for step in range(steps):
            rates.append(min(rule(self.seen(square, step / steps)), self.most))
            square = self.after(square, rates[-1])
        return rates

    def at_equal_samples(self, rule: Rule, size: Size, steps: int) -> float:
        """Progress of as many steps as the samples of ``steps`` full ones make. The last may be of fewer samples."""
        square, spent = self.start, 0.0
        while spent < steps * (1 - 1e-9):
            share = spent / steps
            groups = min(size(self.seen(square, share)), steps - spent)
            step = replace(self, noise=self.noise / groups)
            square = step.after(square, min(rule(step.seen(square, share)), self.most))
            spent += groups
        return self.removed(square)


def tuned(progress: Callable[[float], float], octaves: int = 14) -> tuple[float, float]:
    """The best ``η₀`` and the progress that it makes.

    Raises:
        ValueError: it lies at an end of what is searched, so many octaves below and above 1.
    """

    def loss(log: float) -> float:
        return -progress(2.0**log)

    grid = np.arange(-octaves, octaves + 0.5, 0.5)
    first = int(np.argmin([loss(log) for log in grid]))
    if first in (0, len(grid) - 1):
        raise ValueError(f"the best η₀ is not inside 2^-{octaves} to 2^{octaves}: {2.0 ** grid[first]:.3g}")
    found = minimize_scalar(loss, bounds=(grid[first - 1], grid[first + 1]), method="bounded")
    return float(2.0**found.x), float(-found.fun)


def best(problem: Quadratic, start: Sequence[float]) -> tuple[list[float], float]:
    """The schedule of most progress that improving on ``start`` leads to, one rate for each step, and that progress."""
    curvature, noise = torch.tensor(problem.curvature), torch.tensor(problem.noise)

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        rates = torch.tensor(logs, requires_grad=True)
        square = torch.tensor(problem.start)
        for rate in rates.exp():
            square = (1 - rate * curvature) ** 2 * square + rate**2 * noise
        value = (curvature * square).sum().log()
        value.backward()
        return value.item(), rates.grad.numpy()

    bounds = [(None, np.log(problem.most))] * len(start)
    found = minimize(loss, np.log(start), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500})
    rates = [float(rate) for rate in np.exp(found.x)]
    return rates, problem.progress(rates)
