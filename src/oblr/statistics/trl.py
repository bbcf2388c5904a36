"""The statistics of TRL's ``GRPOTrainer`` and ``RLOOTrainer``: ``watch(trainer, "statistics.jsonl")``."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oblr.statistics.log import StepRecord, append
from oblr.statistics.observer import GradientStatistics
from oblr.statistics.peaks import peaks

#: What a batch's rewards are called on their way to the step that learns from them.
REWARD = "oblr_reward"


def watch(trainer: Any, path: str | Path | None = None, told: Callable[[StepRecord], None] | None = None) -> "Watcher":
    """Have every update of a trainer measured. What it computes stays the same to the bit.

    Prompts are told apart by their tokens. ``square_norm`` is known where the loss has one coefficient for all tokens
    of a response, as in a batch's first update without KL penalty; a ``reward`` where all reward functions are plain.

    Args:
        trainer: a ``GRPOTrainer`` or ``RLOOTrainer`` of TRL 1.16, before ``train()``. Gradient accumulation, peft and
            several ranks of DDP may be; Liger's kernels and compiled models may not.
        path: file that a line is added to for each update, see :mod:`oblr.statistics.log`.
        told: called with each update's record, on all ranks.

    Raises:
        UnmeasuredError: the trainer then does, in its first step, where its model cannot be measured exactly.
    """
    from transformers import TrainerCallback  # which takes seconds, and is there where a trainer is

    class StatisticsCallback(Watcher, TrainerCallback):
        """What a trainer calls."""

    callback = StatisticsCallback(trainer, None if path is None else Path(path), told)
    trainer.add_callback(callback)
    return callback


class Watcher:
    """See :func:`watch`.

    Attributes:
        last: record of the last update.
    """

    def __init__(self, trainer: Any, path: Path | None, told: Callable[[StepRecord], None] | None):
        self.path, self.told = path, told
        self.last: StepRecord | None = None
        self.statistics: GradientStatistics | None = None
        self.columns: dict[str, list[Any]] = {}
        self.slopes: list[tuple[Tensor, Tensor]] = []  # of log-probabilities, and these
        self.completions: list[Tensor] = []
        self.scores: list[list[float | None]] = []
        self.tokenizer = trainer.processing_class
        self._wrap_rewards(trainer)
        for name, wrap in (
            ("_generate_and_score_completions", self._with_rewards),
            ("_get_per_token_logps_and_entropies", self._with_slopes),
            ("compute_loss", self._with_columns),
        ):
            setattr(trainer, name, wrap(getattr(trainer, name), trainer))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.statistics = GradientStatistics(kwargs["model"])
        self.statistics.fused_head(getattr(args, "temperature", 1.0))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.statistics is not None:
            self.statistics.close()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.statistics is not None
        columns, self.columns = self.columns, {}
        groups = columns.pop("group")
        slopes, self.slopes = self.slopes, []
        completions, self.completions = self.completions, []
        if slopes:
            columns["coefficients"] = [value for slope, _ in slopes for value in constants(slope)]
            found = [peaks(logps, slope) for slope, logps in slopes]
            columns["peak"] = [place for one in found for place in one.places.tolist()]
            columns["peak_share"] = [share for one in found for share in one.shares.tolist()]
            tokens = [ids.gather(1, one.places[:, None]) for ids, one in zip(completions, found, strict=True)]
            columns["peak_text"] = self.tokenizer.batch_decode(torch.cat(tokens))
        rates = [group["lr"] for group in kwargs["optimizer"].param_groups]
        self.last = record = self.statistics.step(groups, learning_rate=rates[0], **columns)
        if self.path is not None and state.is_world_process_zero:
            append(self.path, record)
        if self.told is not None:
            self.told(record)

    def _wrap_rewards(self, trainer: Any) -> None:
        """Have plain reward functions leave what they gave."""
        functions = trainer.reward_funcs
        if any(isinstance(one, nn.Module) or inspect.iscoroutinefunction(one) for one in functions):
            return  # whose scores are not left where they can be read

        def heard(function: Callable[..., list[float | None]]) -> Callable[..., list[float | None]]:
            def score(*args: Any, **kwargs: Any) -> list[float | None]:
                given = function(*args, **kwargs)
                self.scores.append(list(given))
                return given

            score.__name__ = getattr(function, "__name__", type(function).__name__)
            return score

        trainer.reward_funcs = [heard(one) for one in functions]

    def _with_rewards(self, generate: Callable[..., Any], trainer: Any) -> Callable[..., Any]:
        def generate_and_score(inputs: Any) -> Any:
            self.scores.clear()
            output = generate(inputs)
            if self.scores and trainer.model.training:
                weights = trainer.reward_weights.tolist()
                each = zip(*self.scores, strict=True)
                sums = [sum(w * (s or 0.0) for w, s in zip(weights, of_one, strict=True)) for of_one in each]
                output[REWARD] = torch.tensor(sums, device=output["advantages"].device)
            return output

        return generate_and_score

    def _with_slopes(self, compute: Callable[..., Any], trainer: Any) -> Callable[..., Any]:
        def log_probabilities(*args: Any, **kwargs: Any) -> Any:
            logps, *others = compute(*args, **kwargs)
            if logps.requires_grad:
                logps.register_hook(lambda slope: self.slopes.append((slope.detach(), logps.detach())))
            return logps, *others

        return log_probabilities

    def _with_columns(self, compute: Callable[..., Any], trainer: Any) -> Callable[..., Any]:
        def loss(model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if model.training:
                for name, column in described(inputs, self.tokenizer).items():
                    self.columns.setdefault(name, []).extend(column)
                self.completions.append(inputs["completion_ids"])
            return compute(model, inputs, *args, **kwargs)

        return loss


def described(inputs: dict[str, Any], tokenizer: Any) -> dict[str, list[Any]]:
    """The columns of a micro-batch of TRL's, as :class:`~oblr.statistics.log.Response` names them."""
    prompts, texts = (
        [ids[mask.bool()].tolist() for ids, mask in zip(inputs[f"{of}_ids"], inputs[f"{of}_mask"], strict=True)]
        for of in ("prompt", "completion")
    )
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    columns: dict[str, list[Any]] = {
        "group": [hash(tuple(ids)) for ids in prompts],
        "length": [len(ids) for ids in texts],
        "finished": [bool(ids) and ids[-1] in ends for ids in texts],
        "prompt": tokenizer.batch_decode(prompts),
        "text": tokenizer.batch_decode(texts, skip_special_tokens=True),
    }
    if inputs["advantages"].ndim == 1:
        columns["advantage"] = inputs["advantages"].tolist()
    if REWARD in inputs:
        columns["reward"] = inputs[REWARD].tolist()
    return columns


def constants(slope: Tensor) -> list[float]:
    """The coefficient that all tokens of a response have, of the loss's gradient by each token's log-probability.

    Args:
        slope: [R, T]; 0 where there is no token.

    Returns:
        [R]; NaN where they differ, 0 where the loss does not depend on the response.
    """
    peak = slope.gather(1, slope.abs().argmax(1, keepdim=True)).squeeze(1)
    off = torch.where(slope == 0, 0.0, (slope - peak[:, None]).abs()).amax(1)
    alike = off <= 1e-5 * peak.abs()
    return torch.where(alike, peak, torch.nan).tolist()
