"""What findings say of horizons holds in each laboratory and on each quadratic; their numbers come by cog."""

from measured import results

PROBLEMS = [f"quadratic of N·SNR = {n_snr}, T = {steps}" for n_snr in (0.05, 0.5, 5) for steps in (100, 300)]


def of(shape):
    return [results("horizon")[f"{problem}: {shape}"]["value"] for problem in PROBLEMS]


def laboratories(end):
    figures = results("horizon").items()
    return [figure["value"] for name, figure in figures if name.startswith("laboratory") and name.endswith(end)]


def test_over_a_few_steps_a_constant_rate_is_nearly_best_and_the_proved_one_far_below():
    assert len(laboratories(": constant")) == 12
    assert min(laboratories(": constant")) > 99
    assert max(laboratories("η₀ proved")) < 4
    assert min(laboratories(": best η₀")) > 90


def test_over_long_horizons_theorem_4_gives_up_too_soon():
    worst, decayed, root = (min(of(shape)) for shape in ("theorem 4", "linear", "its root, linear"))
    assert worst < decayed < root


def test_rates_without_tuning_do_worse_than_the_tuned_constant_one():
    assert all(a < b for a, b in zip(of("measured"), of("constant"), strict=True))


def test_groups_by_the_noise_scale_are_ahead_at_a_constant_rate_and_behind_a_decay():
    batches = of("constant, N by the noise scale")
    assert all(a > b for a, b in zip(batches, of("constant, best N"), strict=True))
    assert all(a < b for a, b in zip(batches, of("linear, best N"), strict=True))
