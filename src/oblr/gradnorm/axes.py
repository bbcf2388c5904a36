"""Which axis of what a layer is given is that of the tokens.

Layers see a micro-batch's rows as [R, L, …], as [R·L, …], or, inside attention, as [R, H, L, d].
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

#: Axes of tokens, by layer, as far as they have been told from others.
_KNOWN: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()


def token_axis(module: nn.Module, shape: torch.Size, rows: torch.Size, trailing: int) -> int | None:
    """The axis of the L tokens of each row; 0 where the rows are laid end to end; None where there is none.

    Where another axis is as long, it is the one that it was when none was; a model that has been checked has
    been seen then.

    Args:
        shape: of a layer's input.
        rows: (R, L).
        trailing: axes of the input that the parameter has, too.
    """
    n_rows, length = rows
    possible = {0} if len(shape) > trailing and shape[0] == n_rows * length else set()
    if shape[0] == n_rows:
        possible |= {axis for axis in range(1, len(shape) - trailing) if shape[axis] == length}
    known = _KNOWN.setdefault(module, set(range(len(shape))))
    if len(possible) == 1:
        known.intersection_update(possible)
    return min(possible & known, default=None)


def token_rows(x: Tensor, axis: int, rows: torch.Size, trailing: int) -> Tensor:
    """``x`` token by token, [R·L, k, size]: what lies between tokens and the trailing axes, and those."""
    x = x if axis == 0 else x.movedim(axis, 1)
    return x.reshape(rows.numel(), -1, x.shape[x.ndim - trailing :].numel())
