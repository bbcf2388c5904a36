"""What a command needs of the Python that runs it."""

import sys
from importlib.util import find_spec

from oblr.run.paths import INSTALLED


def require(*packages: str) -> None:
    """End the program in one line, with status 1, where one of ``packages`` is not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        if INSTALLED:  # perhaps of the library alone
            remedy = 'pip install "oblr[train]"'
        else:
            remedy = "activate the environment: source .venv/bin/activate; make install makes it where there is none"
        sys.exit(f"error: this Python ({sys.executable}) has no {missing[0]} ({remedy})")
