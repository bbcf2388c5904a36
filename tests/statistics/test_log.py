import json
import math

import pytest
import torch

from oblr.statistics.log import Response, StepRecord, append, read, written

RECORD = StepRecord(
    step=3,
    gradient_square=0.5,
    group_squares=[2.0, None],
    responses=[Response(0, 0.25, reward=1.0, text="a\u2028b\n"), Response(1, alignment=-0.5, finished=False)],
    turn=0.1,
    layers={"lm_head.weight": 1.0},
)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "statistics.jsonl"
    for _ in range(2):
        append(path, RECORD)
    with path.open(encoding="utf-8") as lines:
        assert list(read(lines)) == [RECORD, RECORD]


def test_what_is_no_number_is_null():
    line = written(StepRecord(1, math.inf, [math.nan], [Response(0, math.nan)]))
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["gradient_square"], found["group_squares"]) == (None, [None])
    assert found["responses"][0]["gradient_square"] is None


def test_names_of_a_later_version_are_left_out():
    line = json.loads(written(RECORD))
    line["new"], line["responses"][0]["new"] = 1, 2
    assert list(read([json.dumps(line)])) == [RECORD]


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"step": 1}', '{"responses": [{}], "step": 1}'])
def test_another_line_is_refused_with_its_number(line):
    with pytest.raises(ValueError, match="line 2 is no update"):
        list(read([written(RECORD), line]))


def test_moments_are_those_of_the_groups():
    moments = StepRecord(1, 2.0, [3.0, 5.0], []).moments
    assert (moments.n_groups, moments.mean_square, moments.square_mean) == (2, 2.0, 4.0)
    assert math.isnan(RECORD.moments.square_mean)


def test_noise_is_split_within_and_between_prompts():
    """Of gradients that are drawn: a mean of its own for each prompt, and responses about it."""
    n_groups, size, within, between = 300, 6, 2.0, 0.5
    generator = torch.Generator().manual_seed(0)
    means = between * torch.randn(n_groups, 1, 40, generator=generator)
    h = means + within * torch.randn(n_groups, size, 40, generator=generator)
    g = (h / (n_groups * size)).flatten(0, 1)
    responses = [Response(i // size, x.square().sum().item()) for i, x in enumerate(g)]
    record = StepRecord(1, g.sum(0).square().sum().item(), h.mean(1).square().sum(1).tolist(), responses)
    assert record.noise_within == pytest.approx(40 * within**2 / size, rel=0.03)
    assert record.noise_between == pytest.approx(40 * between**2, rel=0.06)
    assert math.isnan(StepRecord(1, 1.0, [1.0], [Response(0, 1.0)]).noise_within)


def test_noise_and_signal_have_no_bias_by_being_cut_at_0():
    """Of norms that rounding has left in disorder, and of two prompts whose gradients cancel."""
    clear, noisy = StepRecord(1, 4.5, [4.0, 4.0], []), StepRecord(1, 0.0, [4.0, 4.0], [])
    assert (clear.noise, clear.signal) == (-1.0, 5.0)
    assert (noisy.noise, noisy.signal) == (8.0, -4.0)
