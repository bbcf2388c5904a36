from dataclasses import replace

import pytest
from doctored import responses, run

from oblr.doctor.diagnosis import MOST, diagnose, healthy, lines, sentences
from oblr.doctor.findings import Finding

pytestmark = pytest.mark.usefixtures("whole")


@pytest.mark.parametrize("seed", range(8))
def test_healthy_runs_are_told_so(seed):
    steps = run(seed=seed)
    assert diagnose(steps) == []
    (said,) = lines(steps, [], ours=True)
    assert said.startswith("healthy: nothing found in 32 steps; reward 0.")
    assert sentences(steps, [], ours=True) == [said]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_of_few_steps_nothing_is_said(count):
    assert diagnose(run(count)) == []
    assert healthy(run(count)).startswith(f"healthy: nothing found in {count} step")


def test_what_is_not_known_is_no_finding():
    """As of a trainer of which only norms were kept."""
    blank = {"reward": None, "advantage": None, "square_norm": None, "log_ratio": None, "logprob": None, "text": None}
    blank |= {"length": None, "finished": None, "entropy": None, "gradient_square": None}
    steps = responses(run(), lambda one, step, place: replace(one, **blank))
    assert diagnose([replace(step, group_squares=[None] * 16, learning_rate=None) for step in steps]) == []


def test_a_sick_run_gets_no_advice():
    steps = run(prompts=2, size=64, prompt_noise=1.0)
    assert next(one.name for one in diagnose(steps)) == "large_groups"
    sick = responses(steps, lambda one, step, place: replace(one, reward=100.0) if place == 3 else one, only=[9])
    assert [one.name for one in diagnose(sick)] == ["odd_reward"]


def test_at_most_five():
    def ill(one, step, place):
        return replace(one, finished=False, entropy=0.3 / step**2, reward=100.0 if (step, place) == (9, 9) else 0.0)

    steps = responses(run(solved=lambda t: 0.3), ill)
    steps = [replace(step, gradient_square=3 * step.moments.square_mean + 1) for step in steps]
    found = diagnose(steps)
    assert 1 < len(found) <= MOST
    assert found[0].name == "foreign_gradient"


def test_each_finding_says_what_to_do_where_it_comes_from():
    steps = run(prompts=2, size=64, prompt_noise=1.0)
    found = diagnose(steps)
    for ours, fix in ((True, "rollout.prompts_per_step=16"), (False, "num_generations=8")):
        printed = "\n".join(lines(steps, found, ours))
        assert printed.startswith("1. ")
        assert all(f"\n   {part}" in printed for part in ("why ", "sure", "do "))
        assert fix in printed
        assert fix in sentences(steps, found, ours)[0]


def test_what_can_do_nothing_about_a_finding_is_not_told_of_it():
    steps = run()
    found = [Finding("", "tuning", "Another baseline leaves less.", "by norms", "certain", "baseline=other", "")]
    assert "baseline=other" in sentences(steps, found, ours=True)[0]
    assert sentences(steps, found, ours=False) == [healthy(steps)] == list(lines(steps, found, ours=False))
