"""What is known of one update's gradient, and the file that keeps it: a line of strict JSON for each update.

A step's gradient is ``ĝ = Σ_i g_i`` over the responses whose losses it was made of, whatever the loss. Of N prompts,
``g_q = N Σ_{i∈q} g_i`` is what a prompt alone would have moved, and ``ĝ`` is their mean.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oblr.batch.types import Moments

#: What the file of a run is called where nobody calls it anything else.
STATISTICS = "statistics.jsonl"


@dataclass(frozen=True)
class Response:
    """One response of a step. What is not known is None.

    Attributes:
        group: which prompt of the step it answers, from 0.
        gradient_square: ``‖g_i‖²``, squared length of its part in the step's gradient.
        square_norm: ``n_i = ‖∇θ log π(o_i|q)‖²``.
        alignment: ``cos(g_i, ĝ)``; estimated where the step says that its inner products are.
        reward: what the baseline was given.
        advantage: what its log-probability was multiplied by, but for a constant of the step.
        length: response tokens.
        finished: whether it ended by itself, before the limit of tokens.
        log_ratio: ``log π(o_i|q) − log μ(o_i|q)`` to the policy that it was sampled from, in nats.
        entropy: mean entropy of the distributions that its tokens were drawn from, in nats.
        logprob: ``log μ(o_i|q)`` under what it was sampled from, in nats.
        peak: place, from 0, of the token whose own logit ``z_t`` has the largest ``|∂ℓ_i/∂z_t|`` in its loss.
        peak_share: of that token in ``Σ_t (∂ℓ_i/∂z_t)²``.
        peak_text: that token as it is read.
        prompt, text: as they are read.
    """

    group: int
    gradient_square: float | None = None
    square_norm: float | None = None
    alignment: float | None = None
    reward: float | None = None
    advantage: float | None = None
    length: int | None = None
    finished: bool | None = None
    log_ratio: float | None = None
    entropy: float | None = None
    logprob: float | None = None
    peak: int | None = None
    peak_share: float | None = None
    peak_text: str | None = None
    prompt: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class StepRecord:
    """One update. What is not known is None.

    Attributes:
        step: from 1.
        gradient_square: ``‖ĝ‖²``, before any clipping.
        group_squares: ``‖g_q‖²`` of each prompt [N].
        responses: prompt by prompt, or in any order: each names its group.
        learning_rate: of the update.
        eta0: what the run was told, where a schedule makes the learning rate of it.
        clipped: what clipping left of the gradient's length, 1 for all.
        turn: cosine of this step's gradient with that of the step before.
        onward: cosine of the last update of the parameters with ``−ĝ``: whether its way would still lead down. Below 0
            it went too far; under ``−η ĝ`` it is ``turn``.
        estimated: whether norms of groups and alignments are unbiased estimates from random projections; all other
            numbers are exact.
        plain: whether it was ``−η ĝ``, as under SGD without momentum or weight decay.
        age: steps since the weights that its responses were sampled with, where they are meant to be old.
        layers: share of each layer in ``Σ_i ‖g_i‖²``, by its name.
    """

    step: int
    gradient_square: float
    group_squares: list[float | None]
    responses: list[Response]
    learning_rate: float | None = None
    eta0: float | None = None
    clipped: float | None = None
    turn: float | None = None
    onward: float | None = None
    estimated: bool = False
    plain: bool = False
    age: int = 0
    layers: dict[str, float] = field(default_factory=dict)

    @property
    def moments(self) -> Moments:
        """Of the groups' gradients; NaN where one is not known."""
        squares = [math.nan if square is None else square for square in self.group_squares]
        return Moments(len(squares), self.gradient_square, sum(squares) / len(squares))

    @property
    def noise(self) -> float:
        """``tr H = N/(N−1) · (M2 − M1)``, without bias: below 0 now and then. NaN where it is not known."""
        count = len(self.group_squares)
        return count / (count - 1) * (self.moments.square_mean - self.gradient_square) if count > 1 else math.nan

    @property
    def signal(self) -> float:
        """``‖ĝ‖² − tr H/N``, an estimate of ``‖∇J‖²`` without bias, below 0 now and then. NaN where it is not known."""
        return self.gradient_square - self.noise / len(self.group_squares)

    @property
    def noise_within(self) -> float:
        """The part of ``tr H`` that more responses a prompt would lessen: half of it with twice as many.

        ``1/N Σ_q (Σ_{i∈q} ‖h_i‖² − G‖g_q‖²) / (G (G − 1))`` with ``h_i = N G g_i``. It takes a prompt's responses for
        independent; a baseline of the group ties them, by an order of 1/G. NaN where a prompt has a single response.
        """
        n_groups, own = len(self.group_squares), defaultdict[int, list[float]](list)
        for response in self.responses:
            square = response.gradient_square
            own[response.group].append(math.nan if square is None else square)
        if min(map(len, own.values()), default=0) < 2 or len(own) != n_groups:
            return math.nan
        joint = [math.nan if square is None else square for square in self.group_squares]
        parts = ((n_groups**2 * len(of) * sum(of) - joint[q]) / (len(of) - 1) for q, of in own.items())
        return sum(parts) / n_groups

    @property
    def noise_between(self) -> float:
        """The part of ``tr H`` that only more prompts would lessen; an estimate, which may be below 0."""
        return self.noise - self.noise_within


def written(record: StepRecord) -> str:
    """A line, with its end. What is no number is null."""
    return json.dumps(_strict(asdict(record)), allow_nan=False, ensure_ascii=False) + "\n"


def append(path: Path, record: StepRecord) -> None:
    """Add an update to a file, which is made if it is not there."""
    with path.open("a", encoding="utf-8") as file:
        file.write(written(record))


def read(lines: Iterable[str]) -> Iterator[StepRecord]:
    """The updates of a file, in its order; names that are not known here are left out.

    Raises:
        ValueError: a line is no record.
    """
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
            responses = [Response(**_known(Response, row)) for row in found.pop("responses")]
            yield StepRecord(**_known(StepRecord, found), responses=responses)
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"line {number} is no update: {error}") from error


def _known(kind: Any, row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in kind.__dataclass_fields__}


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _strict(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
