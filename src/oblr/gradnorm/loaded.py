"""Classes that take a second or more to import. Before somebody has imported one there is nothing of it to be met."""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def loaded(module: str, name: str) -> Any:
    """The class of this name, for ``isinstance``; ``()``, which nothing is an instance of, where nobody has it."""
    return getattr(sys.modules[module], name) if module in sys.modules else ()


def is_sharded(x: object) -> "TypeGuard[DTensor]":
    """Whether it is a ``DTensor``, as the parameters of FSDP2 are."""
    return isinstance(x, loaded("torch.distributed.tensor", "DTensor"))
