"""What findings say of horizons is what was computed."""

from measured import results
from pages import page


def test_what_a_horizon_asks_of_rates_is_as_computed():
    figures = {name: figure["value"] for name, figure in results("horizon").items()}
    shares = [figures[name] for name in figures if name.startswith("laboratory") and name.endswith(": constant")]
    assert len(shares) == 12
    proved = [value for name, value in figures.items() if name.endswith("η₀ proved")]
    best = [value for name, value in figures.items() if name.endswith(": best η₀")]
    assert f"best rate there is {min(best):.0f} to {round(max(best), -2):,.0f} times as large" in page(
        "docs/findings.md"
    )
    assert f"the proved one makes {min(proved):.2f} to {max(proved):.1f} % of" in page("docs/findings.md")
    assert f"the best constant one makes at least {min(shares):.1f} % of the best\nschedule's progress" in page(
        "docs/findings.md"
    )
    for shape, sentence in (
        ("theorem 4", "rate makes {} to {} %"),
        ("linear", "a linear decay {} to {} %"),
        ("its root, linear", "{} to {} % (`python studies/horizon.py`"),
    ):
        names = [
            f"quadratic of N·SNR = {n_snr}, T = {steps}: {shape}" for n_snr in (0.05, 0.5, 5) for steps in (100, 300)
        ]
        found = [figures[name] for name in names]
        assert sentence.format(f"{min(found):.0f}", f"{max(found):.0f}") in page("docs/findings.md")


def test_rates_without_tuning_and_groups_by_the_noise_scale_are_as_computed():
    log = page("docs/findings.md").split("## Log")[1]
    figures = {name: figure["value"] for name, figure in results("horizon").items()}
    problems = [f"quadratic of N·SNR = {n_snr}, T = {steps}" for n_snr in (0.05, 0.5, 5) for steps in (100, 300)]

    def of(shape):
        return [figures[f"{problem}: {shape}"] for problem in problems]

    untuned, batches = of("measured"), of("constant, N by the noise scale")
    assert all(a < b for a, b in zip(untuned, of("constant"), strict=True))
    assert f"{min(untuned):.0f} to {max(untuned):.0f} % of the best schedule's progress, less than the tuned" in log
    assert all(a > b for a, b in zip(batches, of("constant, best N"), strict=True))
    behind = [b - a for a, b in zip(batches, of("linear, best N"), strict=True)]
    assert f"by {min(behind):.0f} to {max(behind):.0f} points of the best schedule's progress" in log
