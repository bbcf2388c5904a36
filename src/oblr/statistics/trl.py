"""The statistics of TRL's ``GRPOTrainer`` and ``RLOOTrainer``: ``watch(trainer, "statistics.jsonl")``."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oblr.errors import UnmeasuredError
from oblr.statistics.log import StepRecord, append
from oblr.statistics.observer import GradientStatistics
from oblr.statistics.peaks import peaks

#: What a batch's rewards and prompts are called on their way to the step that learns from them.
REWARD, GROUP = "oblr_reward", "oblr_group"
#: More prompts than a batch has.
MANY = 2**32


def watch(trainer: Any, path: str | Path | None = None, told: Callable[[StepRecord], None] | None = None) -> "Watcher":
    """Have every update of a trainer measured. What it computes stays the same to the bit.

    A prompt that is drawn twice in a step has two groups, as it has in the trainer. ``square_norm`` is known where the
    loss has one coefficient for all tokens of a response, as in a batch's first update without KL penalty; a ``reward``
    where all reward functions are plain, and one of them has scored the response.

    Args:
        trainer: a ``GRPOTrainer`` or ``RLOOTrainer`` of TRL 1.16, before ``train()``. Gradient accumulation, peft and
            several ranks of DDP may be; Liger's kernels and compiled models may not.
        path: file that a line is added to for each update, see :mod:`oblr.statistics.log`. It is made now; where it is
            there, what is added comes after what it has.
        told: called with each update's record, on all ranks.

    Raises:
        OSError: the file cannot be written.
        UnmeasuredError: the trainer is watched already. Later the trainer raises it, in its first step, where its model
            cannot be measured exactly.
    """
    from transformers import TrainerCallback  # which takes seconds, and is there where a trainer is

    class StatisticsCallback(Watcher, TrainerCallback):
        """What a trainer calls."""

    if any(isinstance(one, Watcher) for one in trainer.callback_handler.callbacks):
        raise UnmeasuredError("the trainer is watched already", "call watch() once")
    file = None if path is None else Path(path)
    if file is not None and trainer.accelerator.is_main_process:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
    callback = StatisticsCallback(trainer, file, told)
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
        self.completions: list[tuple[Tensor, Tensor]] = []  # token ids, and which of them the loss is of
        self.sampled: list[Tensor | None] = []  # log-probabilities under what sampled them, where TRL has them
        self.generations = 0
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
        sampled, self.sampled = self.sampled, []
        if slopes:
            masks = [mask for _, mask in completions]
            pairs = list(zip(slopes, masks, strict=True))
            columns["coefficients"] = [value for (slope, _), mask in pairs for value in constants(slope, mask)]
            own = [(logps.double() * mask).sum(1) for (_, logps), mask in pairs]
            columns["logprob"] = torch.cat(
                [now if before is None else before for now, before in zip(own, sampled, strict=True)]
            ).tolist()
            if (known := [before for before in sampled if before is not None]) and len(known) == len(own):
                columns["log_ratio"] = (torch.cat(own) - torch.cat(known)).tolist()
            found = [peaks(logps, slope) for slope, logps in slopes]
            columns["peak"] = [place for one in found for place in one.places.tolist()]
            columns["peak_share"] = [share for one in found for share in one.shares.tolist()]
            tokens = [ids.gather(1, one.places[:, None]) for (ids, _), one in zip(completions, found, strict=True)]
            columns["peak_text"] = self.tokenizer.batch_decode(torch.cat(tokens))
        rates = [group["lr"] for group in kwargs["optimizer"].param_groups]
        record = self.statistics.step(groups, learning_rate=rates[0], **columns)
        self.last = record = replace(record, step=state.global_step + 1)  # a resumed run goes on counting
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
            if not trainer.model.training:
                return output
            count, device = len(output["advantages"]), output["advantages"].device
            self.generations += 1
            place = trainer.accelerator.process_index * count + torch.arange(count, device=device)
            output[GROUP] = self.generations * MANY + place // trainer.num_generations
            if self.scores:
                weights, each = trainer.reward_weights.tolist(), zip(*self.scores, strict=True)
                output[REWARD] = torch.tensor([weighted_sum(of_one, weights) for of_one in each], device=device)
            return output

        return generate_and_score

    def _with_slopes(self, compute: Callable[..., Any], trainer: Any) -> Callable[..., Any]:
        def log_probabilities(*args: Any, **kwargs: Any) -> Any:
            logps, *others = compute(*args, **kwargs)
            if logps.requires_grad:
                known = logps.detach()  # a hook that knew the tensor it is of would keep it, and its graph, for ever
                logps.register_hook(lambda slope: self.slopes.append((slope.detach(), known)))
            return logps, *others

        return log_probabilities

    def _with_columns(self, compute: Callable[..., Any], trainer: Any) -> Callable[..., Any]:
        def loss(model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if model.training:
                for name, column in described(inputs, self.tokenizer).items():
                    self.columns.setdefault(name, []).extend(column)
                mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
                self.completions.append((inputs["completion_ids"], mask.bool()))
                self.sampled.append(behaviour(inputs, mask))
            return compute(model, inputs, *args, **kwargs)

        return loss


def behaviour(inputs: dict[str, Any], mask: Tensor) -> Tensor | None:
    """``log μ`` of each response, float64 [R]: as an engine has told it, or the policy that sampled; None: this one."""
    for name in ("sampling_per_token_logps", "old_per_token_logps"):
        if inputs.get(name) is not None:
            return (inputs[name].double() * mask).sum(1)
    old = inputs.get("old_logps")
    return None if old is None else old.double()


def described(inputs: dict[str, Any], tokenizer: Any) -> dict[str, list[Any]]:
    """The columns of a micro-batch of TRL's, as :class:`~oblr.statistics.log.Response` names them."""
    prompts, texts = (
        [ids[mask.bool()].tolist() for ids, mask in zip(inputs[f"{of}_ids"], inputs[f"{of}_mask"], strict=True)]
        for of in ("prompt", "completion")
    )
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    columns: dict[str, list[Any]] = {
        "group": inputs[GROUP].tolist(),
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


def weighted_sum(scores: Sequence[float | None], weights: Sequence[float]) -> float:
    """Of the functions that have scored a response, as TRL adds them up; NaN where none has."""
    known = [weight * score for weight, score in zip(weights, scores, strict=True) if score is not None]
    return sum(known) if known else math.nan


def constants(slope: Tensor, mask: Tensor) -> list[float]:
    """The coefficient that all tokens of a response have, of the loss's gradient by each token's log-probability.

    Args:
        slope: [R, T].
        mask: where there is a token of the response, bool [R, T].

    Returns:
        [R]; NaN where they differ, 0 where the loss does not depend on the response.
    """
    peak = slope.gather(1, slope.abs().argmax(1, keepdim=True)).squeeze(1)
    off = torch.where(mask, (slope - peak[:, None]).abs(), 0.0).amax(1)
    alike = off <= 1e-5 * peak.abs()
    return torch.where(alike, peak, torch.nan).tolist()
