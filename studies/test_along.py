"""What the page says of single runs is what the committed runs say; and by hand."""

import math

import pytest
from along import calibration, correlation, earlier, falls, level, norms, response, responses
from contest import Runs
from measured import results
from results import CONTEST
from training import Record


def test_the_committed_figures_are_those_of_the_committed_runs():
    runs, committed = Runs(CONTEST, makes=False), results("along")
    found = [*norms(runs), *calibration(runs), *responses(runs), *falls(runs), *earlier()]
    assert [figure.name for figure in found] == list(committed)
    for ours in found:
        for end in ("value", "low", "high"):
            assert getattr(ours, end, None) == pytest.approx(committed[ours.name].get(end), rel=1e-9), ours.name


def test_at_one_rate_gradients_are_shorter_and_not_steadier():
    """Shorter excludes a tie; spread does not, and over the mean it is the same."""
    of = results("along")
    shorter, steadier, relative = (
        of[f"pocket, steps 50 to 99, norm of the gradient, {name}: gradient_weighted over rloo"]
        for name in ("mean", "spread", "spread over mean")
    )
    assert shorter["high"] < 0
    assert steadier["low"] < 0 < steadier["high"]
    assert relative["low"] < 0 < relative["high"]


def test_the_start_says_how_a_run_begins_and_not_how_it_ends():
    of = results("along")
    for steps in (100, 300):
        row = f"pocket, {steps} steps, gradient_weighted, noise_linear: log E₀ and"
        area, late = of[f"{row} area"], of[f"{row} late reward"]
        assert area["high"] < 0
        assert late["low"] < 0 < late["high"]


def test_under_the_snr_schedule_weights_by_gradients_and_none_were_ahead():
    of = results("along")
    weighted, none = (of[f"pocket, 24 steps, snr, {name}: area, over rloo's"] for name in ("gradient_weighted", "none"))
    assert min(weighted["low"], none["low"]) > 0


def test_no_run_of_300_steps_broke_down_at_the_default_s_rate():
    of = {name: figure["value"] for name, figure in results("along").items()}
    assert of["300 steps, default: least late reward of them"] > 95
    rows = "pocket, 300 steps, gradient_weighted, cosine, η₀ = 0.02, seed"
    assert of[f"{rows} 102: late reward"] < 10 < 90 < of[f"{rows} 101: late reward"]


def test_a_level_is_of_the_first_steps_that_have_a_gradient():
    assert level(Record(mean_square=[0, 1, 2, 3, 0, 4, 5, 100])) == 3


def test_a_rate_that_answers_its_step_is_told_from_one_that_does_not():
    squares = [1.0, 4.0, 2.0, 0.0, 8.0, 1.0, 3.0]
    answering = Record(lr=[1 / square if square else 1 for square in squares], mean_square=squares)
    assert response(answering) == pytest.approx(-1)
    late = Record(lr=[1.0, *answering.lr[:-1]], mean_square=squares)
    assert response(late) > -0.5


def test_fishers_interval():
    found = correlation("", [1, 2, 3, 4, 5, 6, 7], [1, 3, 2, 5, 4, 7, 6])
    half = 1.96 / 2
    assert math.atanh(found.high) - math.atanh(found.value) == pytest.approx(half)
    assert math.atanh(found.value) - math.atanh(found.low) == pytest.approx(half)
