"""``python -m pytest`` as a script, which a nursery can start: of the folder that it is started in."""

import sys

import pytest

if __name__ == "__main__":
    sys.path[0] = ""  # not where this file is: the tests may be those of another checkout
    sys.exit(pytest.main(sys.argv[1:]))
