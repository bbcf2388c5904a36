"""The same rollouts give the same norms, moments, rate and parameters on any number of ranks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT


def run(folder, kind, rewards, passes="two", token_budget=60, precision="32-true", settings=("plain",)):
    """What each of the settings of ``rank_worker.py`` results in; of one alone if there is one."""
    arguments = [",".join(settings), kind, passes, str(token_budget), rewards, precision, str(folder)]
    subprocess.run(
        [sys.executable, str(ROOT / "tests" / "rank_worker.py"), *arguments],
        check=True,
        capture_output=True,
        timeout=120,
    )
    results = [torch.load(Path(folder) / f"{name}.pt") for name in settings]
    return results if len(results) > 1 else results[0]


def distance(found, expected):
    """``‖found − expected‖/‖expected‖`` over all parameters."""
    change = sum((found[name] - gradient).double().square().sum() for name, gradient in expected.items())
    return (change / sum(gradient.double().square().sum() for gradient in expected.values())).sqrt()


def assert_equal(both, single, name, tolerance=1e-6):
    torch.testing.assert_close(both["moments"], single["moments"], rtol=tolerance, atol=0)
    assert (both.pop("baseline") - single["baseline"]).norm() <= 1e-6 * single["baseline"].norm(), name
    found, expected = both.pop("gradient"), single["gradient"]
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():  # one at a time: small ones must not hide behind large
        assert (found[parameter] - gradient).norm() < 1e-5 * gradient.norm(), f"{name} {parameter}"
    assert distance(found, expected) < tolerance
    for key, value in both.items():
        torch.testing.assert_close(value, single[key], rtol=1e-5, atol=1e-6, equal_nan=True, msg=f"{name} {key}")


@pytest.mark.parametrize(("tying", "rewards"), [("tied", "mixed"), ("tied", "first"), ("untied", "all")])
def test_two_ranks_equal_one_process(tmp_path, tying, rewards):
    folder = tmp_path / tying
    folder.mkdir()
    single = run(folder, "single", rewards)
    for kind in ("fsdp", "ddp"):
        for passes, token_budget in (("two", 60), ("one", 40)):  # where 40 are too few, a group is cut
            both = run(folder, kind, rewards, passes, token_budget)
            assert_equal(both, single, f"{kind} {passes}")


def test_what_travels_between_steps_is_the_same_on_two_ranks(tmp_path):
    """Baselines that learn, with penalties, several updates and groups of equal rewards."""
    settings = ("tokens", "shaped", "adaptive")
    folder = tmp_path / "tied"
    folder.mkdir()
    singles = run(folder, "single", "mixed", settings=settings)
    for kind, passes, token_budget in (("fsdp", "one", 40), ("ddp", "two", 60)):
        results = run(folder, kind, "mixed", passes, token_budget, settings=settings)
        for name, both, single in zip(settings, results, singles, strict=True):
            assert len(single["baseline"])
            # the ratios of whole responses make rounding larger
            assert_equal(both, single, f"{name} {kind}", tolerance=5e-6)


def test_what_saves_memory_changes_nothing(tmp_path):
    """Activation checkpointing, and shards that lie in host memory."""
    folder = tmp_path / "tied"
    folder.mkdir()
    single = run(folder, "single", "mixed")
    assert_equal(run(folder, "offloaded", "mixed"), single, "offloaded")


@pytest.mark.parametrize("passes", ["one", "two"])
def test_bfloat16_on_float32_weights_sharded(tmp_path, passes):
    """FSDP rounds all weights, autocast on one device those of products alone: norms are off by a few roundings."""
    exact, single = (run(tmp_path, "single", "mixed", passes, precision=p) for p in ("32-true", "bf16-mixed"))
    both = run(tmp_path, "fsdp", "mixed", passes, precision="bf16-mixed")
    assert both["gradient"]["model.norm.weight"].dtype == torch.float32
    assert both["model.norm.weight"].dtype == torch.bfloat16  # as an engine gets it
    for name in ("square_norms", "moments"):
        for result in (single, both):
            error = (result[name] / exact[name] - 1).nan_to_num().square().mean().sqrt()
            assert 0 < error < 4 * torch.finfo(torch.bfloat16).eps / 2, name
