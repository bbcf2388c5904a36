"""Exact statistics of policy gradients, and a trainer that is governed by them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oblr.statistics.observer import GradientStatistics

__all__ = ["GradientStatistics"]


def __getattr__(name: str) -> Any:
    """The public names, each loaded when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oblr.statistics import observer

    return getattr(observer, name)
