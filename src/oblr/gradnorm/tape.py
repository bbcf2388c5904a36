"""What the layers of one captured backward pass hand in, added up: norms of sequences and gradients of parameters."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from oblr.batch.segments import Segments
from oblr.errors import SettingError
from oblr.gradnorm.axes import token_axis
from oblr.gradnorm.contractions import LinearNorms, square_norm
from oblr.gradnorm.head import HeadUse
from oblr.gradnorm.loaded import is_sharded
from oblr.gradnorm.precision import autocast, no_autocast
from oblr.gradnorm.uses import Kept, LinearUse, TiedHead, Use, Weighting

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Mode = Literal["norms", "record", "weights", "sum"]


class GradientSum:
    """The gradient of one function whose backward passes are several; not yet in ``.grad``."""

    def __init__(self) -> None:
        self.parts: dict[tuple[nn.Module, str], Tensor] = {}

    def add(self, module: nn.Module, name: str, gradient: Tensor) -> None:
        if (module, name) in self.parts:
            self.parts[module, name] += gradient
        else:
            self.parts[module, name] = gradient

    def release(self) -> Tensor:
        """Add it to ``.grad``, under FSDP2 its mean over the ranks; returns its squared norm, float64 []."""
        with Reduction() as reduction:
            for (module, name), gradient in self.parts.items():
                reduction.add(module.get_parameter(name), gradient)
        return torch.stack([square_norm(gradient).double() for gradient in self.parts.values()]).sum()


class Tape:
    """What one captured backward pass adds up.

    Args:
        model: the captured model.
        segments: of the tokens of the packed rows, which every layer but the head sees.
        head_segments: of the positions that the head is applied to.
        mode: what the backward pass makes besides the norms.
            ``norms``: nothing; ``.grad`` stays as it was.
            ``record``: nothing yet; uses are kept, and :meth:`accumulate` makes weighted gradients of them.
            ``weights``: weight gradients, as a plain backward does.
            ``sum``: weight gradients, added up in :attr:`sum` instead of ``.grad``.
        linear_norms: how the norm of a linear layer's gradient is found.
        token_ids: what the input embedding is given, flat, on the CPU; None: it is asked for.

    Attributes:
        sum: set it to go on with an earlier sum.
    """

    def __init__(
        self,
        model: nn.Module,
        segments: Segments,
        head_segments: Segments,
        mode: Mode,
        linear_norms: LinearNorms,
        token_ids: Tensor | None,
    ):
        device, self.token_ids = segments.device, token_ids
        self.segments, self.head_segments, self.mode, self.linear_norms = segments, head_segments, mode, linear_norms
        #: squared norms [S] of single parameters' gradients
        self.parts: dict[tuple[nn.Module, str], Tensor] = {}
        # Makes every captured layer's output require a gradient, whether or not its input does.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.model = model
        self.rows = torch.Size()  # (R, L), once it is known
        self.head, self.embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
        self.tied = self.head.weight is self.embedding.weight
        self.sharded = is_sharded(self.embedding.weight)
        self.tied_head: TiedHead | None = None
        self.kept: list[Kept] = []
        self.sum = GradientSum()
        self.last_cast: tuple[Tensor, Tensor] | None = None

    @property
    def square_norms(self) -> Tensor:
        """``‖∇θ f_s‖²`` of each segment's share ``f_s`` of the differentiated sum, float64 [S]."""
        return _total(list(self.parts.values()), self.segments)

    def parameter(self, p: Any) -> Any:
        """``p`` as autograd may see it: detached unless the pass makes weight gradients."""
        return p if p is None or self.mode == "weights" else p.detach()

    def input(self, x: Tensor) -> Tensor:
        """A linear layer's input in autocast's precision; q, k and v are given the same one."""
        if self.last_cast is None or self.last_cast[0] is not x:
            self.last_cast = x, autocast(x)
        return self.last_cast[1]

    def forget_inputs(self) -> None:
        """Let go of what belongs to autograd's graph, which refers to this tape: nothing would free the circle."""
        self.last_cast = None
        del self.linear_norms

    def take(self, use: Use) -> Tensor | None:
        """Account for one use; returns the gradient that backward is to return, if any."""
        if self.mode == "record":
            kept, norms = use.keep(self.linear_norms)
            self.kept.append(kept)
        elif self.mode == "norms":
            norms = use.square_norms(self.linear_norms)
        elif self.mode == "weights":
            p = use.module.get_parameter(use.name)
            into = None if self.sharded else _room(p)
            gradient, norms = use.gradient(into)
            self._note(use, norms)
            return gradient if into is None else None  # FSDP2 shares out what autograd is given
        else:
            gradient, norms = use.gradient()
            tied = self.tied and use.module is self.head and use.name == "weight"
            owner = self.embedding if tied else use.module
            self.sum.add(owner, use.name, gradient)
        self._note(use, norms)
        return None

    def _note(self, use: Use, square_norms: Tensor) -> None:
        """A second use's gradient adds to the first one's, so that norms would lack what the two have in common."""
        if (use.module, use.name) in self.parts:
            raise SettingError(
                "policy.path",
                f"layer {self.name(use.module)!r} is used twice in a pass: the norm of its gradient is not known",
                "use a model that goes through each layer once",
            )
        self.parts[use.module, use.name] = square_norms

    def name(self, module: nn.Module) -> str:
        return next(name for name, one in self.model.named_modules() if one is module)

    def see(self, ids: Tensor) -> None:
        """The rows of this micro-batch, [R, L]."""
        self.rows = ids.shape

    def check_rows(self, module: nn.Module, x: Tensor, trailing: int, alone: bool = True) -> int:
        """The axis of the tokens, see :func:`~oblr.gradnorm.axes.token_axis`.

        Args:
            alone: whether a token may not have several rows.

        Raises:
            SettingError: it is given something else than one row for each token.
        """
        axis = token_axis(module, x.shape, self.rows, trailing)
        if axis is None or (alone and x.shape[: x.ndim - trailing].numel() != self.rows.numel()):
            raise SettingError(
                "policy.path",
                f"layer {self.name(module)!r} ({type(module).__name__}) is given {list(x.shape)}: not one row a token",
                "freeze it, or use another model",
            )
        return axis

    def take_head(self, use: LinearUse | HeadUse) -> Tensor | None:
        """Account for the head; a tied one is remembered until the embedding is met, unless gradients are added up."""
        if self.tied and self.mode != "sum":
            self.tied_head = use
        return self.take(use)

    def accumulate(self, coefficients: Tensor, group_size: int) -> Tensor:
        """Add ``Σ_s c_s ∇θ f_s`` to ``.grad`` and forget the uses; under FSDP2 its mean over the ranks.

        Args:
            coefficients: ``c_s`` [S].  group_size: segments a group.

        Returns:
            squared norm of each group's part, float64 [S / group_size].
        """
        weighting = Weighting(coefficients, group_size)
        norms: list[Tensor] = []
        with torch.no_grad(), no_autocast(coefficients), Reduction() as reduction:
            while self.kept:
                kept = self.kept.pop()
                p = kept.module.get_parameter(kept.name)
                into = _room(p)
                gradient, square_norms = kept.combine(weighting, into)
                norms.append(square_norms)
                if into is None:
                    reduction.add(p, gradient)
        return _total(norms, weighting.merged(self.segments))


def _total(square_norms: list[Tensor], segments: Segments) -> Tensor:
    """Float64 [S]; over no parameters 0."""
    if not square_norms:
        return torch.zeros(segments.count, dtype=torch.float64, device=segments.device)
    return torch.stack(square_norms).sum(0, dtype=torch.float64)


def _room(p: nn.Parameter) -> Tensor | None:
    """``p``'s gradient so far, if more of it can be added in place."""
    fits = p.grad is not None and not is_sharded(p.grad) and p.grad.dtype == torch.float32
    return p.grad if fits else None


class Reduction:
    """Gradients on their way into ``.grad``. Those of shards are reduced over the ranks while the next is computed.

    All have arrived where the context ends. Where it ends in an error, as of a rank that has died, what is under way is
    waited for as well: torch would say at the program's end that nobody has.
    """

    def __init__(self) -> None:
        self.travelling: tuple[nn.Parameter, Tensor] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return self._arrive()
        if issubclass(kind, Exception):
            with suppress(RuntimeError):  # what is wrong is known
                self._arrive()

    def add(self, p: nn.Parameter, gradient: Tensor) -> None:
        """Start on the way of a whole gradient; where that of another is under way, that one arrives first."""
        started = p, _summed_over_ranks(p, gradient) if is_sharded(p) else gradient
        try:
            self._arrive()
        finally:
            self.travelling = started

    def _arrive(self) -> None:
        if self.travelling is None:
            return
        (p, gradient), self.travelling = self.travelling, None
        if is_sharded(p):  # a shard is divided, which is less than the whole
            gradient = gradient / p.device_mesh.size()
        if p.grad is not None:
            p.grad += gradient.to(p.device)
        else:
            p.grad = gradient.to(p.device, p.dtype)


def _summed_over_ranks(p: "DTensor", gradient: Tensor) -> "DTensor":
    """The sum of the ranks' gradients, in shards as ``p``; it is waited for where it is used."""
    from torch.distributed.tensor import DTensor, Partial, Placement  # who has a shard has imported it

    mesh = p.device_mesh
    placements: list[Placement] = [Partial()] * mesh.ndim
    total = DTensor.from_local(gradient, mesh, placements)
    for i in reversed(range(mesh.ndim)):  # within a copy first: between copies shards travel alone
        placements[i] = p.placements[i]
        total = total.redistribute(placements=placements, async_op=True)
    return total
