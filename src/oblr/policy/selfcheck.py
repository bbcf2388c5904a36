"""Before a run: whether this very model, on these ranks, gives the numbers that plain autograd gives.

A few short sequences go packed through all routes of the step, and one at a time through the model's own forward. What
differs ends the run before an engine starts: in float32, which tells formulas from rounding, whatever the run computes
in (:mod:`~oblr.policy.slices`), and in the run's own precision, as far as the model's own rounding does not explain it
(:mod:`~oblr.policy.rounding`). The memory is that of one gradient: a route's is subtracted from autograd's, parameter
by parameter, in ``.grad``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oblr.batch.packing import PackedBatch, pack
from oblr.errors import SettingError
from oblr.gradnorm.capture import capture
from oblr.gradnorm.measure import GradNorms
from oblr.gradnorm.precision import no_autocast
from oblr.policy import blame
from oblr.policy.autograds import (
    COEFFICIENTS,
    GROUP_SIZE,
    Gaps,
    Plain,
    gaps,
    gaps_of_parts,
    one_line,
    trained,
)
from oblr.policy.model import PolicyModel
from oblr.policy.positions import MOST, ROW, beside, context_of, in_one_row, reach_of, short_windows
from oblr.policy.probes import probes
from oblr.policy.rounding import Limits
from oblr.policy.slices import in_float32, parts, widened
from oblr.run.randomness import kept_random_state
from oblr.run.ranks import of_run


def check(
    model: PolicyModel, computed: torch.dtype, longest: int | None = None, longest_row: int | None = None
) -> None:
    """Leaves model, gradients and generators as they were. Collective.

    Args:
        model: of the policy; nothing of it has a gradient.
        computed: precision of the layers' products.
        longest: tokens of the longest sequence that a run can make; None: any, as far as the model has positions.
        longest_row: tokens of the longest row that will be packed; None: any.

    Raises:
        SettingError: log-probabilities, squared norms of sequences or groups, or the weighted gradient are off.
    """
    longest = longest or reach_of(model.lm.config)
    plain = Plain(model, probes(cast(nn.Embedding, model.lm.get_input_embeddings())))
    with kept_random_state(), _left_alone(model), short_windows(model.lm, longest), _none_zero(model.lm):
        if computed != torch.float32:
            for part in parts(plain):
                with in_float32(model), widened(model, part):
                    Round(plain, torch.float32, longest, longest_row).run()
        Round(plain, computed, longest, longest_row).run()


class Round:
    """One comparison of all routes with plain autograd, in one precision.

    Args:
        plain: the probes, and the model as it is now.
        precision: of its products.
        longest, longest_row: see :func:`check`.
    """

    def __init__(self, plain: Plain, precision: torch.dtype, longest: int | None, longest_row: int | None):
        self.plain, self.model, self.rollouts = plain, plain.model, plain.rollouts
        self.precision, self.longest, self.longest_row = precision, longest, longest_row

    def run(self) -> None:
        self.model.zero_grad()
        self.truth = self.plain.truth()
        self.limits = Limits(self.plain, self.truth, self.precision)
        device = self.truth.logs.device
        whole, *halves = (pack(some).to(device) for some in (self.rollouts, self.rollouts[:2], self.rollouts[2:]))
        gram = GradNorms("exact", "two")
        gram.gram_rows = 8  # Gram matrices of long sequences are made some rows at a time
        routes = {
            "in one pass": (GradNorms("exact", "one"), [whole]),
            "in two passes": (gram, [whole]),
            "of a group in two parts": (GradNorms(), halves),
        }
        found = {}
        for number, (route, (norms, packed)) in enumerate(routes.items()):
            if number:  # autograd's gradient is still there for the first
                self.model.zero_grad()
                self.plain.add_gradient()
            found[route] = self.subtract(norms, packed)
        found["layer by layer"] = self.parts(whole)
        limits = {route: self.limits.of(differences) for route, differences in found.items()}
        for judge in (self.judge_logs, self.judge_gradients, self.judge_parts, self.judge_norms):
            for route in found:
                judge(route, found[route], limits[route], whole)
        self.model.zero_grad()  # a pass without gradients would keep some of what shards have
        self.check_reach()

    def subtract(self, norms: GradNorms, packed: list[PackedBatch]) -> Gaps:
        """Take the probes' gradient by one route of the step away from autograd's, in ``.grad``."""
        model, truth, whole = self.model, self.truth, len(packed) == 1
        model.in_slices = model.sharded or norms.passes == "two"  # a large head is gone through slice by slice
        coefficients = -torch.tensor(COEFFICIENTS, dtype=torch.float64, device=truth.norms.device)
        with (
            one_line("the step cannot run it"),
            norms.measure(model, model.lm, packed, GROUP_SIZE if whole else len(COEFFICIENTS)) as measured,
        ):
            groups = measured.backward(coefficients)
        expected = torch.cat([truth.norms, truth.groups if whole else truth.squares.sum()[None]])
        return gaps(model, truth, measured.tokens.logs, torch.cat([measured.square_norms, groups]), expected)

    def parts(self, packed: PackedBatch) -> Gaps:
        """Of what each parameter has of every ``n_i``: in the sum small ones vanish."""
        model, lm = self.model, self.model.lm
        places = {id(p): i for i, p in enumerate(trained(lm).values())}
        worst: list[Gaps] = []
        for in_slices in (model.sharded, True):
            model.in_slices = in_slices
            with one_line("the step cannot run it"), capture(lm, packed.segments, packed.target_segments) as tape:
                logprobs = model(packed).logprobs
                with no_autocast(logprobs):
                    logprobs.sum().backward()
            found = torch.zeros_like(self.truth.parts)
            for (module, name), norms in tape.parts.items():
                place = places.get(id(module.get_parameter(name)))
                if place is not None:  # else its head is another one's, which log-probabilities tell
                    found[:, place] += norms
            worst.append(gaps_of_parts(self.truth, found))
        return max(worst, key=lambda one: one.parts.max().item())

    def judge_logs(self, route: str, found: Gaps, limits: Gaps, whole: PackedBatch) -> None:
        if not found.logs <= limits.logs:
            rounding = max(limits.logs / 2, 2 * torch.finfo(self.precision).eps)
            layer = blame.strange_layer(self.model, whole, self.plain.own, rounding)
            refuse(
                f"{layer} computes something else for packed sequences than in the model's own forward: "
                f"log-probabilities differ by {self.said(found.logs, limits.logs, route)}"
            )

    def judge_gradients(self, route: str, found: Gaps, limits: Gaps, _: PackedBatch) -> None:
        over = ~(found.gradients <= limits.gradients)
        if over.any():
            places = {name: i for i, name in enumerate(trained(self.model.lm))}
            order = blame.backward_order(self.model.lm, lambda: self.plain.own(0))
            name = next(name for name in order if name in places and over[places[name]])
            gap, limit = (one[places[name]].item() for one in (found.gradients, limits.gradients))
            refuse(f"the gradient of {name} differs by {self.said(gap, limit, route)} from autograd's")

    def judge_parts(self, route: str, found: Gaps, limits: Gaps, _: PackedBatch) -> None:
        if not (found.parts <= limits.parts).all():
            i = int((found.parts / limits.parts).argmax())
            said = self.said(found.parts[i].item(), limits.parts[i].item(), route)
            refuse(
                f"squared norms of gradients differ by {said} from autograd's, "
                f"first that of {list(trained(self.model.lm))[i]}"
            )

    def judge_norms(self, route: str, found: Gaps, limits: Gaps, _: PackedBatch) -> None:
        if not found.norms <= limits.norms:
            said = self.said(found.norms, limits.norms, route)
            refuse(f"squared norms of whole gradients differ by {said} from autograd's")

    def check_reach(self) -> None:
        """Whether log-probabilities stay those of each sequence alone beside the longest, and in the longest row."""
        model, longest, logs = self.model, self.longest, self.truth.logs
        with one_line("the step cannot run it with long sequences"):
            if longest is not None:
                self.judge_reach(
                    beside(model, self.rollouts, logs, longest, model.longest_row),
                    f"once a sequence of {longest} tokens is packed beside them",
                    "set rollout.max_model_len to the length from which positions mean something else, or use another",
                )
            context = context_of(model.lm.config)
            if context is None or (self.longest_row is not None and self.longest_row <= context):
                return
            if model.longest_row is not None:
                refuse(f"rows of more than its {context} positions fail: its causal mask is a table of that size")
            if context <= ROW and context * sum(p.numel() for p in model.parameters()) <= MOST:
                row = in_one_row(model, self.rollouts, logs, context + 1)
                self.judge_reach(row, f"in rows of more than its {context} positions")

    def judge_reach(self, gap: Tensor, where: str, fix: str | None = None) -> None:
        nothing = torch.zeros(len(trained(self.model.lm)), dtype=torch.float64)
        found = Gaps(of_run().greatest(gap.nan_to_num(nan=torch.inf).item()), 0.0, nothing, nothing)
        limit = self.limits.of(found).logs
        if not found.logs <= limit:
            refuse(f"log-probabilities differ by {self.said(found.logs, limit)} {where}", *([fix] if fix else []))

    def said(self, gap: float, limit: float, route: str = "") -> str:
        """The number that was compared, what it was compared with, and where it was found."""
        precision = str(self.precision).removeprefix("torch.")
        where = f"in {precision}, {route}" if route else f"in {precision}"
        return f"{100 * gap:.3g} % ({where}; {100 * limit:.3g} % may be rounding)"


def refuse(
    problem: str,
    fix: str = "this model cannot be trained here: use another, or teach oblr.gradnorm and oblr.policy what it does",
) -> NoReturn:
    raise SettingError("policy.path", problem, fix)


@contextmanager
def _left_alone(model: PolicyModel) -> Iterator[None]:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    in_slices = model.in_slices
    try:
        yield
    finally:
        model.in_slices = in_slices
        model.zero_grad()
        model.rest()
        for name, buffer in model.named_buffers():
            if name in buffers and not torch.equal(buffer, buffers[name]):
                buffer.copy_(buffers[name])


@contextmanager
@torch.no_grad()
def _none_zero(lm: nn.Module) -> Iterator[None]:
    """What begins as zero is not zero meanwhile: it would hide the gradient of another, as LoRA's B does that of A."""
    zeros, generator = [], torch.Generator().manual_seed(0)
    for p in trained(lm).values():
        own = p.to_local() if isinstance(p, DTensor) else p
        if not own.any():
            zeros.append(own)
            own.copy_(0.02 * torch.randn(own.shape, generator=generator))
    try:
        yield
    finally:
        for own in zeros:
            own.zero_()
