"""What the pages say of ratios is what was measured, and so is what the product refuses for it."""

import pytest
from measured import results
from pages import page

from oblr.commands.checks import ROUNDING


def test_the_rounding_that_is_refused_for_is_the_measured_one():
    measured = results("ratios")["bfloat16 engine: Δ of a token, standard deviation"]["value"]
    assert pytest.approx(measured, rel=0.1) == ROUNDING


@pytest.mark.parametrize("ratio", ["sequence", "sequence ≤ 5", "sequence ≤ 2", "token ≤ 2"])
def test_ratio_figures_are_the_measured_ones(ratio):
    figures, cells = {name: figure["value"] for name, figure in results("ratios").items()}, []
    for name in ("128 tokens", "512 tokens", "bfloat16 engine, 512 tokens"):
        error, left = (figures[f"{name}, {ratio}: {what}"] for what in ("error of ĝ", "effective responses in a group"))
        cells += [f"{100 * error:.0f} %", f"{left:.1f}"]
    assert f"| {ratio} | " + " | ".join(cells) + " |" in page("docs/losses.md")


def test_what_bfloat16_makes_of_ratios_is_as_measured():
    figures = {name: figure["value"] for name, figure in results("ratios").items()}
    gaps = [figures[f"{engine} engine: |Δ| of a token, mean"] for engine in ("float32", "bfloat16")]
    assert f"differ by {gaps[0]:.3f} nats a token, by {gaps[1]:.3f} where the engine is bfloat16 as well" in page(
        "docs/losses.md"
    )
    drawn = [figures[f"bfloat16 engine, drawn, {n} tokens: effective sample size of ρ"] for n in (64, 256, 1024)]
    assert "{:.0f} % at 64 tokens, {:.0f} % at 256, {:.1f} % at 1,024".format(*(100 * x for x in drawn)) in page(
        "docs/losses.md"
    )
    assert f"beside float32, is {100 * figures['128 tokens, none: error of ĝ']:.0f} %" in page("docs/losses.md")
    dropped = figures["bfloat16 engine, 512 tokens, gspo: dropped at the first update"]
    assert f"GSPO drops {100 * dropped:.0f} % of the responses" in page("docs/losses.md")
    errors = [results("second_update")[f"by the {whose}'s: error of log ρ"]["value"] for whose in ("engine", "policy")]
    assert "off by {:.2f} nats with the engine's and by {:.2f} with the policy's own".format(*errors) in page(
        "docs/losses.md"
    )
