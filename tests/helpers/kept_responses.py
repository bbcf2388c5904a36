"""What a run has kept of its responses."""

import gzip
import json
from pathlib import Path
from typing import Any

from oblr.record.rollouts import files_of_steps


def read_rollouts(folder: Path, step: int) -> list[dict[str, Any]]:
    """The responses of all ranks in a step, group by group; none where they were not kept."""
    files = files_of_steps(folder).get(step, [])
    found = [json.loads(line) for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]
    return sorted(found, key=lambda row: (row["group"], row["response"]))
