"""The same rollouts give the same norms, moments, rate and parameters on any number of ranks."""

import os
from pathlib import Path

import pytest
import torch
import warm
from cases import wide
from collectives import recorded
from conftest import ROOT, VOCAB
from rank_worker import LENGTHS, POISONED, RANKS
from safetensors.torch import load_file

from oblr.gradnorm.head import SLICE

#: Relative, of the squared ratio of the longest response: each token's log-probability is off by the rounding of
#: its log-normaliser, which is about 4: log V.
OF_SQUARED_RATIOS = 2 * max(LENGTHS) * 4 * torch.finfo(torch.float32).eps / 2


def run(folder, kind, rewards, *runs, precision="32-true", logits=SLICE):
    """What each of the runs results in: settings of ``rank_worker.py``, passes, token budget; another kind, and whose
    checkpoint it goes on from.

    ``logits`` are held at once. All ranks must have taken part in the same collectives.
    """
    arguments = kind, rewards, precision, str(logits), str(folder)
    command = [str(ROOT / "tests" / "helpers" / "rank_worker.py"), *arguments, *runs]
    places = ROOT, ROOT / "tests", os.environ.get("PYTHONPATH", "")  # of callbacks and conftest.py
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    result = warm.run(command, ROOT, paths, timeout=240)
    assert result.returncode == 0, result.stderr
    names = ["-".join(one.split(":")[:2]) for one in runs]
    for name, one in zip(names, runs, strict=True) if kind != "single" else ():
        own = (one.split(":")[3:] or [kind])[0]
        assert recorded(folder / name, RANKS.get(own, 2), 2 if "hybrid" in own else 1)
    return [torch.load(Path(folder) / f"{name}.pt") for name in names]


def distance(found, expected):
    """``‖found − expected‖/‖expected‖`` over all parameters."""
    change = sum((found[name] - gradient).double().square().sum() for name, gradient in expected.items())
    return (change / sum(gradient.double().square().sum() for gradient in expected.values())).sqrt()


def comparable(logged):
    """What is logged of all ranks; the engine is checked on the first responses of each."""
    figures = {tag: float(value) for tag, value in logged.items() if not tag.startswith("rollout/logprob_gap")}
    return figures | {"snr/noise_scale": 1 / figures["snr/noise_scale"]}  # over a signal that is nearly nothing


def assert_equal(both, single, name, tolerance=1e-6, of_moments=1e-6):
    torch.testing.assert_close(both["moments"], single["moments"], rtol=of_moments, atol=0)
    # What a baseline keeps are sums of norms times rewards ≥ 0: no further off than norms may be, below.
    assert (both.pop("baseline") - single["baseline"]).norm() <= 1e-5 * single["baseline"].norm(), name
    found, expected = both.pop("gradient"), single["gradient"]
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():  # one at a time: small ones must not hide behind large
        assert (found[parameter] - gradient).norm() < 1e-5 * gradient.norm(), f"{name} {parameter}"
    assert distance(found, expected) < tolerance
    logged, expected = comparable(both.pop("logged")), comparable(single["logged"])
    assert {"train/entropy", "gradnorm/mean", "baseline/batch_mean", "snr/M1"} < logged.keys() == expected.keys()
    for tag, value in logged.items():
        # The signal is what is left of moments that nearly cancel; their quotients, of order one, are off as they are.
        least = of_moments if tag.startswith("snr/") else 1e-12
        assert value == pytest.approx(expected[tag], rel=10 * of_moments, abs=least), f"{name} {tag}"
    for key, value in both.items():
        torch.testing.assert_close(value, single[key], rtol=1e-5, atol=1e-6, equal_nan=True, msg=f"{name} {key}")


def assert_adapted(single, base):
    """Adapters alone have gradients; an engine gets the weights by their own names, of which some have moved."""
    assert all("lora_" in name and gradient.any() for name, gradient in single["gradient"].items())
    assert base.keys() <= single.keys()
    assert not any("lora_" in name or "base_layer" in name for name in single)
    moved = {name for name, weight in base.items() if not torch.equal(single[name], weight)}
    assert moved == {name for name in base if "_proj" in name}


TWO, ONE = "two:60", "one:40"  # where 40 are too few, a group is cut


@pytest.mark.parametrize(
    ("tying", "rewards", "ways"),
    [
        ("tied", "first", {"fsdp": (("plain", TWO), ("lora", ONE))}),
        *wide(
            ("tied", "first", {"ddp": (("plain", ONE), ("lora", TWO))}),
            ("untied", "all", {"fsdp": (("plain", ONE), ("lora", TWO)), "ddp": (("plain", TWO), ("lora", ONE))}),
        ),
    ],
    ids=["tied", "tied, copies", "untied"],
)
def test_two_ranks_equal_one_process(tmp_path, tying, rewards, ways):
    folder = tmp_path / tying
    folder.mkdir()
    singles = run(folder, "single", rewards, "plain:two:60", "lora:two:60")
    assert_adapted(singles[1], load_file(folder / "model" / "model.safetensors"))
    for kind, pairs in ways.items():
        runs = [f"{name}:{passes}" for name, passes in pairs]
        for name, both, single in zip(runs, run(folder, kind, rewards, *runs), singles, strict=True):
            assert_equal(both, single, f"{kind} {name}")


@pytest.mark.wide
def test_copies_that_are_sharded_equal_one_process(tmp_path):
    """Four ranks as two copies of two shards each, beside all four as one; checkpoints go from one to the other."""
    folder = tmp_path / "tied"
    folder.mkdir()
    kept, lora = run(folder, "single", "mixed", "kept:two:60", "lora:two:60")
    runs = {"kept:one:40": kept, "lora:two:60": lora, "resumed:two:60:four:hybrid": kept}
    for (name, single), four in zip(runs.items(), run(folder, "hybrid", "mixed", *runs), strict=True):
        assert_equal(four, dict(single), name)
    (offloaded,) = run(folder, "hybrid-offloaded", "mixed", "kept:two:60")
    assert_equal(offloaded, kept, "offloaded")
    (resumed,) = run(folder, "single", "mixed", "resumed:one:60:single:hybrid")
    assert_equal(resumed, kept, "resumed by one process")


@pytest.mark.wide
def test_unequal_shares_do_not_hang(tmp_path):
    """One rank has no live group. Of the second micro-batch one has 24 targets, the other 20; 22 need no slices."""
    folder = tmp_path / "untied"
    folder.mkdir()
    runs = "plain:two:60", "plain:one:60", "past:one:20"  # where 20 are too few, groups are cut
    run(folder, "fsdp", "first", *runs, logits=22 * VOCAB)


@pytest.mark.wide
def test_a_step_without_any_live_group_leaves_shards(tmp_path):
    run(tmp_path, "fsdp", "none", "plain:two:60", precision="bf16-mixed")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "passes", "settings"),
    [
        ("fsdp", "one:40", ("shaped", "past")),
        ("fsdp", "one:40", ("tokens", "step")),
        ("ddp", "two:60", ("tokens", "shaped", "past", "step")),
    ],
)
def test_what_travels_between_steps_is_the_same_on_two_ranks(tmp_path, kind, passes, settings):
    """Baselines that learn, with penalties, several updates and groups of equal rewards."""
    folder = tmp_path / "tied"
    folder.mkdir()
    singles = run(folder, "single", "mixed", *(f"{name}:two:60" for name in settings))
    of = dict.fromkeys(settings, passes) | {"step": passes.replace("one", "two")}  # one pass is refused
    results = run(folder, kind, "mixed", *(f"{name}:{of[name]}" for name in settings))
    for name, both, single in zip(settings, results, singles, strict=True):
        assert len(single["baseline"])
        # the ratios of whole responses make rounding larger
        assert_equal(both, single, f"{name} {kind}", tolerance=5e-6, of_moments=OF_SQUARED_RATIOS)


@pytest.mark.wide
def test_ranks_refuse_alike(tmp_path):
    """Whatever is wrong with a response of the second rank, neither moves, and the step that follows is as ever."""
    folder = tmp_path / "tied"
    folder.mkdir()
    (single,) = run(folder, "single", "mixed", "poisoned:two:60")
    assert single["refused"] == len(POISONED)
    for kind, passes in (("fsdp", "one:40"), ("ddp", "two:60")):
        (both,) = run(folder, kind, "mixed", f"poisoned:{passes}")
        assert_equal(both, single, f"poisoned {kind}")


@pytest.mark.wide
def test_what_saves_memory_changes_nothing(tmp_path):
    """Activation checkpointing, and shards that lie in host memory."""
    folder = tmp_path / "tied"
    folder.mkdir()
    runs = "plain:two:60", "lora:two:60"
    singles, offloaded = (run(folder, kind, "mixed", *runs) for kind in ("single", "offloaded"))
    for name, both, single in zip(runs, offloaded, singles, strict=True):
        assert_equal(both, single, f"offloaded {name}")


@pytest.mark.wide
def test_bfloat16_on_float32_weights_sharded(tmp_path):
    """FSDP rounds all weights, autocast on one device those of products alone: norms are off by a few roundings."""
    runs = "plain:one:60", "plain:two:60"
    exact, singles = (run(tmp_path, "single", "mixed", *runs, precision=p) for p in ("32-true", "bf16-mixed"))
    shared = run(tmp_path, "fsdp", "mixed", *runs, precision="bf16-mixed")
    for truth, *rounded in zip(exact, singles, shared, strict=True):
        assert rounded[1]["gradient"]["model.norm.weight"].dtype == torch.float32
        assert rounded[1]["model.norm.weight"].dtype == torch.bfloat16  # as an engine gets it
        for name in ("square_norms", "moments"):
            for result in rounded:
                error = (result[name] / truth[name] - 1).nan_to_num().square().mean().sqrt()
                assert 0 < error < 4 * torch.finfo(torch.bfloat16).eps / 2, name
