"""What is typed comes through here first: without the project's environment it ends in one line."""

import sys
from importlib.util import find_spec

if missing := [name for name in ("hydra", "torch") if find_spec(name) is None]:
    sys.exit(
        f"error: this Python ({sys.executable}) has no {missing[0]}"
        " (activate the environment: source .venv/bin/activate; make install makes it where there is none)"
    )
