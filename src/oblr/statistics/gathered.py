"""From what passes have seen, on all ranks, to the record of a step."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from oblr.errors import UnmeasuredError
from oblr.gradnorm.contractions import square_norm
from oblr.gradnorm.loaded import is_sharded
from oblr.statistics.log import Response, StepRecord
from oblr.statistics.passes import Pass
from oblr.statistics.sketch import Sketch

#: By which the gradient of a parameter may differ from the sum over sequences, over the lengths of all that is summed:
#: in float32, and where autograd rounds products to less.
PRECISE, ROUNDED = 1e-4, 0.05
#: Of all parameters' lengths: one whose sequences have less is taken to have as much. Some gradients are 0 but for
#: rounding, as those of the biases of keys.
LEAST = 0.01


@dataclass(frozen=True)
class Gathered:
    """The sequences of a step, of all ranks.

    Attributes:
        squares: ``‖g_i‖²``, float64 [S].
        layers: of which each parameter has so much, summed over the sequences.
        sketches: by parameter, float64 [S, K].
        groups: int [S], which prompt each is of, from 0 without gaps.
        group_squares: ``‖g_q‖²`` if they are exact, float64 [N].
        rounded: whether autograd computes in less than float32.
        columns: of each sequence.
    """

    squares: Tensor
    layers: dict[str, float]
    sketches: dict[str, Tensor]
    groups: Tensor
    group_squares: Tensor | None
    rounded: bool
    columns: dict[str, list[Any]]

    @classmethod
    def of(cls, passes: Sequence[Pass], groups: Sequence[int] | None, columns: Mapping[str, Sequence[Any]]) -> Self:
        """Join the passes of this rank, and those of all ranks. Collective.

        Raises:
            UnmeasuredError: on all ranks, where one of them has nothing to give, or columns of another length.
        """
        try:
            own: dict[str, Any] | UnmeasuredError = _of_rank(passes, groups, columns)
        except UnmeasuredError as error:
            own = error
        return cls._together(_of_ranks(own))

    @classmethod
    def _together(cls, ranks: list[dict[str, Any]]) -> Self:
        """A rank's gradient is divided by the number of ranks, since theirs are averaged."""
        world, size = len(ranks), ranks[0]["size"]
        squares = {key: torch.cat([one["squares"][key] for one in ranks]) / world**2 for key in ranks[0]["squares"]}
        layers: dict[str, float] = defaultdict(float)
        for (name, _), found in squares.items():
            layers[name] += found.sum().item()
        count = len(next(iter(squares.values())))
        exact = None if size == 1 else torch.cat([one["exact"] for one in ranks]) / world**2
        if size > 1:
            named = [q for q in range(count // size) for _ in range(size)]
        else:
            named = [q for one in ranks for q in one["groups"] or ()] or list(range(count))
        first = {q: k for k, q in enumerate(dict.fromkeys(named))}
        return cls(
            squares=torch.stack(list(squares.values())).sum(0),
            layers=dict(layers),
            sketches={
                name: torch.cat([one["sketches"][name] for one in ranks]) / world for name in ranks[0]["sketches"]
            },
            groups=torch.tensor([first[q] for q in named]),
            group_squares=None if exact is None else exact * len(first) ** 2,
            rounded=any(one["rounded"] for one in ranks),
            columns={name: [value for one in ranks for value in one["columns"][name]] for name in ranks[0]["columns"]},
        )


@dataclass(frozen=True)
class Gradient:
    """The gradient in ``.grad`` and the parameters themselves, by random projections.

    Attributes:
        square: its squared norm.
        sketches: of each parameter's gradient [K], by this step's projections, and by the next one's.
        places: of each parameter itself [K], by the same; none where products are rounded, which would hide a step.
    """

    square: float
    sketches: dict[str, Tensor]
    next_sketches: dict[str, Tensor]
    places: dict[str, Tensor]
    next_places: dict[str, Tensor]

    @classmethod
    def of(cls, names: Mapping[Tensor, str], size: int, seeds: Sequence[str], with_places: bool = True) -> Self:
        """Project this rank's gradients and parameters; where they are shards, each rank needs seeds of its own.

        Args:
            names: of the parameters.
            size: of projections.
            seeds: of this step's projections, and of the next one's.
            with_places: whether parameters are projected too.
        """
        square, exact = 0.0, with_places and torch.get_float32_matmul_precision() == "highest"
        sketches: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        places: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        for p, name in names.items():
            if p.grad is None:
                continue
            here, gradient = (x.to_local() if is_sharded(x) else x for x in (p.detach(), p.grad))
            if not here.numel():
                continue
            square += square_norm(gradient).item()
            for k, seed in enumerate(seeds):
                sketch = Sketch(here.shape, size, seed, name, here.device)
                sketches[k][name] = sketch.of_sums(gradient[None])[0].double().cpu()
                if exact:
                    places[k][name] = sketch.of_sums(here.float()[None])[0].double().cpu()
        return cls(square, *sketches, *places)


def record(
    step: int, found: Gathered, gradient: Gradient, last: Gradient | None, learning_rate: float | None
) -> StepRecord:
    """The record of a step.

    Raises:
        UnmeasuredError: the gradient is no number, or not the sum of what was seen.
    """
    if not math.isfinite(gradient.square + found.squares.sum().item()):
        culprits = (~found.squares.isfinite()).nonzero().flatten().tolist()
        problem = f"the gradient is no number, which comes from one or more of the sequences {culprits}"
        raise UnmeasuredError(problem, "look at their losses; they are counted from 0 over the step")
    clipped = scale(found, gradient)
    square = gradient.square / clipped**2 if clipped else 0.0
    products = _products(found)
    columns = dict(found.columns)
    coefficients = columns.pop("coefficients", None)
    n_groups = int(found.groups.max()) + 1
    if found.group_squares is None:
        members = (found.groups == torch.arange(n_groups)[:, None]).double()
        group_squares = n_groups**2 * torch.einsum("qi,ij,qj->q", members, products, members)
    else:
        group_squares = found.group_squares
    with_whole = products.sum(1)
    rows: dict[str, list[Any]] = {
        "group": found.groups.tolist(),
        "gradient_square": found.squares.tolist(),
        "alignment": _known((with_whole / (found.squares * square).sqrt()).clamp(-1, 1).tolist()),
        **{name: _known(column) for name, column in columns.items()},
    }
    if coefficients is not None:
        weights = torch.tensor(coefficients, dtype=torch.float64).square()
        rows["square_norm"] = _known(torch.where(weights > 0, found.squares / weights, math.nan).tolist())
    total = sum(found.layers.values())
    return StepRecord(
        step=step,
        gradient_square=square,
        group_squares=group_squares.tolist(),
        responses=[Response(**dict(zip(rows, values, strict=True))) for values in zip(*rows.values(), strict=True)],
        learning_rate=learning_rate,
        clipped=clipped,
        turn=None if last is None else turn(last, gradient),
        onward=None if last is None else onward(moved(last.next_places, gradient.places), gradient),
        estimated=found.group_squares is None and n_groups < len(found.groups),
        layers={name: part / total for name, part in found.layers.items()} if total else {},
    )


def scale(found: Gathered, gradient: Gradient) -> float:
    """What the gradient is, over the sum of the sequences': 1, or what clipping has left of it.

    Raises:
        UnmeasuredError: the parameters do not have that factor in common.
    """
    seen = {name: sketches.sum(0) for name, sketches in found.sketches.items()}
    lengths = {name: sketches.norm(dim=1).sum().item() for name, sketches in found.sketches.items()}
    least = LEAST * math.hypot(*lengths.values())
    sizes = {name: max(length, least) for name, length in lengths.items()}
    ratios = [
        (gradient.sketches[name] @ total / total.square().sum()).item()
        for name, total in seen.items()
        if name in gradient.sketches and total.norm() > PRECISE * sizes[name]
    ]
    factor = torch.tensor(ratios).median().item() if ratios else 1.0
    tolerance = ROUNDED if found.rounded else PRECISE
    for name in gradient.sketches.keys() | seen.keys():
        nothing = torch.zeros(())
        off = (gradient.sketches.get(name, nothing) - factor * seen.get(name, nothing)).norm().item()
        if not off <= tolerance * factor * sizes.get(name, least):
            raise UnmeasuredError(
                f"the gradient of {name!r} is not the sum of its sequences' gradients",
                "let each layer be called as a module (no fused loss, no hook that changes gradients), and begin each "
                "step with gradients at zero",
            )
    return factor


def turn(last: Gradient, this: Gradient) -> float | None:
    """Cosine of two steps' gradients, estimated by the projections that both have."""
    if not last.square or not this.square:
        return None
    product = sum((there @ this.sketches[name]).item() for name, there in last.next_sketches.items())
    return max(-1.0, min(1.0, product / math.sqrt(last.square * this.square)))


def moved(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The way between two places, by the same projections of both."""
    return {name: now[name] - there for name, there in before.items() if name in now}


def onward(
    way: Mapping[str, Tensor], this: Gradient, add_up: Callable[[Tensor], Tensor] = lambda sums: sums
) -> float | None:
    """Cosine of the last update with ``−ĝ``, estimated by projections.

    What noise the update had is independent of this gradient's, so the sign of the mean is that of the slope where
    the update has ended, whatever optimizer made it.

    Args:
        way: of the update, or in its direction, by this step's projections.
        add_up: sums of a rank's shards over the ranks.
    """
    product = sum(((part @ this.sketches[name]).item() for name, part in way.items() if name in this.sketches), 0.0)
    square = sum((part.square().sum().item() for part in way.values()), 0.0)
    product, square, of_gradient = add_up(torch.tensor([product, square, this.square], dtype=torch.float64)).tolist()
    if not square or not of_gradient:
        return None
    return max(-1.0, min(1.0, -product / math.sqrt(square * of_gradient)))


def _products(found: Gathered) -> Tensor:
    """``⟨g_i, g_j⟩``, float64 [S, S]: exact on the diagonal, estimated beside it."""
    each = torch.cat(list(found.sketches.values()), 1)
    return (each @ each.mT).fill_diagonal_(0) + found.squares.diag()


def _of_rank(
    passes: Sequence[Pass], groups: Sequence[int] | None, columns: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Collect what this rank has seen of its own sequences."""
    if not passes:
        raise UnmeasuredError("no backward pass has been seen", "call step() after loss.backward()")
    counts = [one.count for one in passes]
    for name, column in [("groups", groups), *columns.items()]:
        if column is not None and len(column) != sum(counts):
            problem = f"{name} has {len(column)} entries, and {sum(counts)} sequences went through the model"
            raise UnmeasuredError(problem, "give one for each, in the order of the forward passes")
    keys = sorted({key for one in passes for key in one.sketches})
    squares = {key: _joined([one.each.squares.get(key) for one in passes], counts) for key in keys}
    sketches: dict[str, Tensor] = {}
    for key in keys:
        more = _joined([one.sketches.get(key) for one in passes], counts)
        sketches[key[0]] = sketches[key[0]] + more if key[0] in sketches else more
    exact = [torch.stack(list(part.squares.values())).sum(0) for one in passes for part in one.parts[1:]]
    return {
        "squares": squares,
        "sketches": sketches,
        "groups": None if groups is None else [int(q) for q in groups],
        "exact": torch.cat(exact).double().cpu() if exact else None,
        "columns": {name: [_plain(value) for value in column] for name, column in columns.items()},
        "size": passes[0].parts[-1].size,
        "rounded": any(one.rounded for one in passes) or torch.get_float32_matmul_precision() != "highest",
    }


def _joined(parts: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor:
    """Of all passes, on the CPU; zeros where a pass has not used the parameter."""
    like = next(part for part in parts if part is not None)
    filled = [
        like.new_zeros(n, *like.shape[1:]) if part is None else part for part, n in zip(parts, counts, strict=True)
    ]
    return torch.cat(filled).double().cpu()


def _of_ranks(own: dict[str, Any] | UnmeasuredError) -> list[dict[str, Any]]:
    """Gather what every rank has to say, and raise what one of them refuses."""
    everybodys: list[Any] = [own]
    if dist.is_available() and dist.is_initialized():
        everybodys *= dist.get_world_size()
        dist.all_gather_object(everybodys, own)
    for said in everybodys:
        if isinstance(said, UnmeasuredError):
            raise said
    return everybodys


def _known(values: Sequence[Any]) -> list[Any]:
    """None for what is no number."""
    return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
