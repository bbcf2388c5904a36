"""Imported for what it does: modules of benchmarks and tests that studies use can be imported from here on."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT / name) for name in ("benchmarks", "tests/helpers")]
