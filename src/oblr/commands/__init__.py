"""What is typed comes through here first: without the project's environment it ends in one line."""

import sys
from importlib.util import find_spec
from pathlib import Path

if missing := [name for name in ("hydra", "lightning", "torch") if find_spec(name) is None]:
    if (Path(__file__).parents[1] / "_conf").is_dir():  # a wheel's copy, perhaps of the library alone
        remedy = 'pip install "oblr[train]"'
    else:
        remedy = "activate the environment: source .venv/bin/activate; make install makes it where there is none"
    sys.exit(f"error: this Python ({sys.executable}) has no {missing[0]} ({remedy})")
