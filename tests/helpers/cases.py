"""Marks of a test's cases, for modules that must not load torch."""

from typing import Any

import pytest


def wide(*cases: object) -> list[Any]:
    """Further cases of a test, which take seconds each: ``make test-wide`` tries them."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.wide) for case in cases]
