"""``benchmarks/gpu.py``: a part that fails costs its own figures alone, and says so; what is measured is kept."""

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from types import SimpleNamespace

import gpu
import gpu_selfcheck
import pytest
from conftest import ROOT
from figures import Figure
from gpu import PARTS, Part, chosen, measured, run
from planted import FAULTS, deep

from oblr.errors import SettingError


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def part(monkeypatch):
    """Puts a part in place whose measuring ends with this error."""

    def put(error):
        def measure(quick):
            yield "a note"
            yield Figure("before the error", 1.0, "ms")
            raise error

        monkeypatch.setitem(sys.modules, "gpu_failing", SimpleNamespace(measure=measure))
        monkeypatch.setitem(PARTS, "failing", Part("gpu_failing", 1))

    return put


def test_what_was_found_before_an_error_stays(part, tmp_path):
    part(RuntimeError("no kernel image"))
    with pytest.raises(RuntimeError, match="no kernel image"):
        gpu.measure("failing", tmp_path / "lines", quick=True)
    note, figure = lines(tmp_path / "lines")
    assert note == {"notes": "a note"}
    assert figure["figures"]["name"] == "before the error"


def test_a_missing_package_is_said_and_a_missing_module_of_ours_is_an_error(part, tmp_path):
    part(ModuleNotFoundError("No module named 'trl.trainer'", name="trl.trainer"))
    gpu.measure("failing", tmp_path / "lines", quick=True)
    assert lines(tmp_path / "lines")[-1] == {"missing": "trl"}
    part(ModuleNotFoundError("No module named 'oblr.gone'", name="oblr.gone"))
    with pytest.raises(ModuleNotFoundError):
        gpu.measure("failing", tmp_path / "lines", quick=True)


def test_a_part_ends_at_its_limit():
    row = run("norms", Part("gpu_norms", 1), quick=True)
    assert row["error"].startswith("took longer than 1 s")
    assert row["seconds"] < 20


def test_the_error_is_named(tmp_path):
    log = tmp_path / "log"
    log.write_text("Traceback\n  File x\ntorch.OutOfMemoryError: CUDA out of memory.\nfree: 3\n\n")
    assert gpu.last_line(log) == "torch.OutOfMemoryError: CUDA out of memory."


def test_only_what_was_measured_whole_and_under_the_same_conditions_is_kept(tmp_path):
    journal, same = tmp_path / "gpu.jsonl", {"device": "NVIDIA H200", "code": "a", "versions": {"torch": "2.13"}}
    rows = [
        {"part": "norms", "error": "", "missing": "", **same},
        {"part": "demo", "error": "", "missing": "hydra", **same},
        {"part": "step", "error": "", "missing": "", **same, "code": "b"},
        {"part": "engine-4B", "error": "", "missing": "", **same, "device": "NVIDIA H100"},
        {"part": "trl", "error": "", "missing": "", **same},
        {"part": "trl", "error": "out of memory", "missing": "", **same},
    ]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(measured(journal, same)) == ["norms"]


def test_a_result_has_the_newest_figures_of_each_part_on_the_device(monkeypatch, tmp_path):
    """What an earlier result has is kept where nothing newer is there, whatever machine its journal lies on."""
    monkeypatch.setattr("figures.ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "benchmarks" / "gpu.py")])
    result, journal = tmp_path / "benchmarks" / "results" / "gpu.json", tmp_path / "gpu.jsonl"
    result.parent.mkdir(parents=True)
    about = dict.fromkeys(("seconds", "notes", "missing", "error", "revision", "versions"))

    def row(part, value, device="H100"):
        figures = [] if value is None else [asdict(Figure(f"{part}: {value}", value, ""))]
        return {"part": part, "device": device, "figures": figures, **about}

    def kept(*rows):
        journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
        gpu.put_together(result, journal, "H100")
        return [(found["part"], found["value"]) for found in json.loads(result.read_text())["figures"]]

    found = kept(row("norms", 1), row("norms", 2), row("norms", None), row("norms", 3, "H200"), row("passes", 4))
    assert found == [("passes", 4), ("norms", 2)]
    assert kept(row("norms", 5)) == [("passes", 4), ("norms", 5)]


def test_the_choice_of_parts():
    assert chosen(None, quick=False) == list(PARTS)
    assert chosen(["updates-8B", "norms"], quick=False) == ["norms", "updates-8B-2048", "updates-8B-512"]
    with pytest.raises(SystemExit, match=r"^gpu\.py: no part 'upd': choose of selfcheck-4B"):
        chosen(["upd"], quick=True)


def test_the_first_hour_begins_with_the_self_check_and_no_part_can_take_it():
    for quick in (False, True):
        assert [PARTS[name].module for name in chosen(None, quick)[:3]] == ["gpu_selfcheck"] * 2 + ["gpu_passes"]
    engines = {name for name, part in PARTS.items() if part.limit > 120}
    assert engines == {name for name in PARTS if name.startswith(("demo", "engine", "step", "run", "trl"))}


@pytest.mark.parametrize("fault", [None, *list(FAULTS)[:1]])
def test_the_self_check_shows_its_numbers_before_it_refuses(monkeypatch, fault):
    lm = deep("qwen3", 2)
    monkeypatch.setattr(gpu_selfcheck, "policy", lambda model, quick: (lm, False))
    shown = []
    with FAULTS[fault](lm) if fault else nullcontext(), pytest.raises(SettingError) if fault else nullcontext():
        for one in gpu_selfcheck.measure(True, "planted"):
            shown.append(one)
    (over,) = (one for one in shown if isinstance(one, Figure) and one.target)
    found = {one.name: one.value for one in shown if isinstance(one, Figure)}
    name = "self-check, planted, in float32: largest difference"
    assert over.value == pytest.approx(found[name] / found[f"{name}: its limit"])
    assert over.holds == (fault is None)


def test_without_a_gpu_the_full_form_is_refused_in_one_line():
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": "", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "src:."},
    )
    assert done.returncode == 1
    assert done.stderr == "gpu.py: there is no CUDA device here; --quick runs the same code on the CPU\n"
