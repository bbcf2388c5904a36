"""What a step promises, gains and loses, on the pocket policy and on steps made by hand."""

import re

import pytest
import torch
from lost import BASELINES, Judge, Unit, figures_of
from measured import results
from pages import page
from quoted import with_ends
from tiers import pocket, sample
from torch.nn.utils import parameters_to_vector

from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel


@pytest.fixture(scope="module")
def judge() -> Judge:
    policy = pocket(2)
    return Judge(PolicyModel(load_model(str(policy.path), "float32"), 1.0), sample(policy))


def test_a_short_step_gains_what_it_promises(judge):
    promised, gained = judge(1e-4 * judge.slope)
    assert gained == pytest.approx(promised.item(), rel=0.01)
    assert promised == pytest.approx(1e-4 * judge.slope.square().sum().item(), rel=1e-4)


def test_a_step_twice_as_long_loses_four_times_as_much(judge):
    """Forth and back together: what is of third order cancels."""

    def lost(length: float) -> float:
        steps = [judge(sign * length * judge.slope) for sign in (1, -1)]
        return sum((promised - gained).item() for promised, gained in steps)

    assert lost(4e-3) == pytest.approx(4 * lost(2e-3), rel=0.05)


def test_the_policy_is_as_it_was(judge):
    before = parameters_to_vector(judge.model.parameters()).clone()
    judge(judge.slope)
    assert parameters_to_vector(judge.model.parameters()).equal(before)


def test_half_of_what_is_lost_to_noise_is_left_by_twice_the_prompts():
    """Promised 1; of a step 0.3 is lost, of the mean of two 0.2: the noise of one takes 0.2."""
    of_unit = torch.tensor([[1, 0.7], [1, 0.7], [1, 0.8]]).double().expand(len(BASELINES), -1, -1)
    unit = Unit(of_unit, torch.tensor([2, 0.8]).double(), torch.tensor([4, 2, 1]).double())
    figures = {figure.name.removeprefix("here"): figure.value for figure in figures_of("here", [unit])}
    assert figures[": promised"] == pytest.approx(100)
    assert figures[", rloo: lost"] == pytest.approx(30)
    assert figures[", rloo: lost to noise"] == pytest.approx(20)
    assert figures[", rloo: best rate of a single step"] == pytest.approx(1 / 0.6)
    assert figures[", none: second moment"] == pytest.approx(0.25)
    assert figures[", twice the rate: gained"] == pytest.approx(0.8 / 0.7)


def test_what_a_step_loses_is_as_measured():
    figures, findings = results("lost"), page("docs/findings.md")

    def interval(name, form=".0f"):
        return with_ends(figures[name], form)

    places = [name.removesuffix(": promised") for name in figures if name.endswith(": promised")]
    assert len(places) == 12
    for place in places:
        task, steps = re.fullmatch(r"(\w+), after (\d+) steps", place).groups()
        ours = f"{place}, gradient_weighted: "
        best = interval(f"{ours}best rate of a single step", ".1f")
        cells = [
            *(task, steps, interval(f"{place}: promised", ".2f"), interval(f"{place}, rloo: lost")),
            *(interval(f"{ours}lost"), interval(f"{ours}lost to noise")),
            best if figures[f"{ours}lost"]["low"] > 1 else "none: it curves up",
        ]
        assert "| " + " | ".join(cells) + " |" in findings
    value = {name: figure["value"] for name, figure in figures.items()}
    first, early, *_, last = (f"pocket, after {steps} steps" for steps in (0, 10, 30, 90))
    ours = ", gradient_weighted: "
    assert f"{interval(f'{early}{ours}gained over RLOO' + chr(39) + 's', '.2f')} points a step over RLOO" in findings
    moment = value[f"{early}{ours}second moment"]
    expected = value[f"{early}, rloo: lost to noise"] / 100 * value[f"{early}: promised"] * (1 - moment)
    assert f"its second moment, {moment:.2f} of RLOO's, let one expect {expected:.2f}" in findings
    noise = sorted(value[f"{first}, {baseline}: lost to noise"] for baseline in ("rloo", "gradient_weighted"))
    assert "Before, noise takes {:.0f} to {:.0f} %.".format(*noise) in findings
    late = sorted(value[f"{task}, after 90 steps{ours}second moment"] for task in ("pocket", "pocket_graded"))
    assert "At the end its second moment is {:.2f} to {:.2f} of RLOO's".format(*late) in findings
    assert f"from {value[f'{first}{ours}best rate of a single step']:.0f} times the tuned constant rate" in findings
    assert 0.45 < value[f"{last}{ours}best rate of a single step"] < 0.55  # "half of it"
