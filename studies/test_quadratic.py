"""Steps on a quadratic, against sampling and against what is known in closed form."""

import numpy as np
import pytest
from quadratic import Quadratic, best, tuned


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
    eta0, progress = tuned(lambda eta0: problem.progress(problem.rates(lambda seen: eta0 * seen.factor, steps)))
    assert eta0 == pytest.approx(1 / 2, rel=1e-3)
    rates, reached = best(problem, [0.2] * steps)
    assert reached == pytest.approx(progress, abs=1e-6)
    assert rates[0] > 5 * rates[-1]


def test_with_many_curvatures_it_gives_up_too_soon():
    """Short-horizon bias: over 100 steps a rate that falls linearly gets further."""
    problem, steps = Quadratic.of_spectrum(n_snr=0.05), 100
    _, theorem = tuned(lambda eta0: problem.progress(problem.rates(lambda seen: eta0 * seen.factor, steps)))
    _, linear = tuned(lambda eta0: problem.progress(problem.rates(lambda seen: eta0 * (1 - seen.share), steps)))
    assert linear > 1.1 * theorem
    assert best(problem, [0.05] * steps)[1] > linear


def test_a_rule_sees_the_signal_and_the_noise_of_its_step():
    problem = Quadratic.of_spectrum(n_snr=0.5)
    rates = problem.rates(lambda seen: 0.3 * seen.signal / (seen.signal + seen.noise) + 3 * seen.share, 3)
    assert rates[0] == pytest.approx(0.3 * 0.5 / 1.5)
    square = problem.after(problem.start, rates[0])
    n_snr = (problem.curvature**2 * square).sum() / problem.noise.sum()
    assert rates[1] == pytest.approx(0.3 * n_snr / (1 + n_snr) + 1)
    assert rates[2] == problem.most == 2


def test_a_best_rate_at_an_end_is_refused():
    with pytest.raises(ValueError, match="not inside"):
        tuned(lambda eta0: Quadratic.of_spectrum(n_snr=1.0).progress([1e-9 * eta0] * 5))


def test_the_measured_rate_is_the_best_of_one_step():
    """Theorem 4 with the true curvature along the step: no other rate gains more there."""
    problem = Quadratic.of_spectrum(n_snr=0.5)
    seen = problem.seen(problem.start, 0)
    rate = seen.signal / seen.curvature
    assert tuned(lambda rate: problem.progress([rate]))[0] == pytest.approx(rate, rel=1e-4)


def test_at_equal_samples_steps_of_half_the_size_are_twice_as_many_and_noisier():
    problem = Quadratic.of_spectrum(n_snr=0.5)
    halves = Quadratic(problem.curvature, problem.start, problem.noise * 2)
    reached = problem.at_equal_samples(lambda seen: 0.1 * (1 - seen.share), lambda seen: 0.5, 10)
    assert reached == pytest.approx(halves.progress([0.1 * (1 - step / 20) for step in range(20)]), rel=1e-12)
    assert problem.at_equal_samples(lambda seen: 0.1, lambda seen: 1, 10) == problem.progress([0.1] * 10)


def test_the_last_step_takes_the_samples_that_are_left():
    problem = Quadratic.of_spectrum(n_snr=0.5)
    reached = problem.at_equal_samples(lambda seen: 0.1, lambda seen: 0.75, 1)
    parts = [Quadratic(problem.curvature, problem.start, problem.noise / groups) for groups in (0.75, 0.25)]
    square = parts[1].after(parts[0].after(problem.start, 0.1), 0.1)
    assert reached == pytest.approx(problem.removed(square))
