"""Steps on a quadratic, against sampling and against what is known in closed form."""

import numpy as np
import pytest
from theory.quadratic import Quadratic, best, tuned


def test_steps_are_those_that_sampling_takes():
    problem, rate, steps = Quadratic.of_spectrum(n_snr=1.0, size=4), 0.4, 7
    generator, runs = np.random.default_rng(0), 200_000
    x = np.sqrt(problem.start) * np.ones((runs, 4))
    for _ in range(steps):
        gradients = -problem.curvature * x + np.sqrt(problem.noise) * generator.normal(size=x.shape)
        x = x + rate * gradients
    loss, start = ((problem.curvature * squares).sum() for squares in ((x**2).mean(0), problem.start))
    assert problem.progress([rate] * steps) == pytest.approx(1 - loss / start, rel=3e-3)


def test_the_signal_to_noise_ratio_is_what_was_asked_for():
    problem = Quadratic.of_spectrum(n_snr=0.05)
    assert (problem.curvature**2 * problem.start).sum() / problem.noise.sum() == pytest.approx(0.05)


def test_with_one_curvature_theorem_4_is_the_best_schedule_of_any_horizon():
    """There greed is right: ``1/L`` times the factor, step by step, and nothing does better."""
    problem, steps = Quadratic(np.array([2.0]), np.array([1.0]), np.array([3.0])), 20
    eta0, progress = tuned(problem, lambda eta0: lambda signal, noise, _: eta0 * signal / (signal + noise), steps)
    assert eta0 == pytest.approx(1 / 2, rel=1e-3)
    rates, reached = best(problem, [0.2] * steps)
    assert reached == pytest.approx(progress, abs=1e-6)
    assert rates[0] > 5 * rates[-1]


def test_with_many_curvatures_it_gives_up_too_soon():
    """Short-horizon bias: over 100 steps a rate that falls linearly gets further."""
    problem, steps = Quadratic.of_spectrum(n_snr=0.05), 100
    _, theorem = tuned(problem, lambda eta0: lambda signal, noise, _: eta0 * signal / (signal + noise), steps)
    _, linear = tuned(problem, lambda eta0: lambda signal, noise, step: eta0 * (1 - step / steps), steps)
    assert linear > 1.1 * theorem
    assert best(problem, [0.05] * steps)[1] > linear


def test_a_rule_sees_the_signal_and_the_noise_of_its_step():
    problem = Quadratic.of_spectrum(n_snr=0.5)
    rates = problem.rates(lambda signal, noise, step: 0.3 * signal / (signal + noise) + step, 3)
    assert rates[0] == pytest.approx(0.3 * 0.5 / 1.5)
    square = problem.after(problem.start, rates[0])
    n_snr = (problem.curvature**2 * square).sum() / problem.noise.sum()
    assert rates[1] == pytest.approx(0.3 * n_snr / (1 + n_snr) + 1)
    assert rates[2] == problem.most == 2


def test_a_best_rate_at_an_end_is_refused():
    with pytest.raises(ValueError, match="not inside"):
        tuned(Quadratic.of_spectrum(n_snr=1.0), lambda eta0: lambda *_: 1e-9 * eta0, 5)
