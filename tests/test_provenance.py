"""What a run was can be told from what it has written."""

from pathlib import Path

import pytest

from oblr.run.provenance import write_whole


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """The disk fills up."""
    path, write = tmp_path / "record.json", Path.write_text
    write_whole(path, "what was there")

    def half(file: Path, text: str) -> None:
        write(file, text[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "what is new")
    assert path.read_text() == "what was there"
