"""Steps of a run that never was, of gradients that are what the statistics say of them, to plant faults in."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import pytest

from oblr.doctor.findings import Finding, Kind, Sure
from oblr.statistics.log import Response, StepRecord

#: Parameters of the policy.
SIZE = 24


def run(
    count: int = 32,
    prompts: int = 16,
    size: int = 8,
    clear: float = 0.12,
    prompt_noise: float = 0.0,
    solved: Callable[[int], float] = lambda t: 0.35 + 0.55 * min(t / 12, 1),
    pooled: bool = False,
    seed: int = 0,
) -> list[StepRecord]:
    """Healthy by default: the reward rises, and a good part of the gradient is signal.

    Args:
        count, prompts, size: steps, N and G.
        clear: how much of ∇ log π lies in one direction, in standard deviations of the rest.
        prompt_noise: how much of the rest the responses to a prompt have in common.
        solved: chance of a reward of 1 at a step, from 0.
        pooled: whether all prompts have one baseline.
    """
    draw = random.Random(seed)
    return [_step(draw, t, prompts, size, clear, prompt_noise, solved(t), pooled) for t in range(count)]


def _step(
    draw: random.Random,
    t: int,
    prompts: int,
    size: int,
    clear: float,
    prompt_noise: float,
    chance: float,
    pooled: bool,
) -> StepRecord:
    responses, parts = list[Response](), list[list[list[float]]]()
    rewards = [[float(draw.random() < chance) for _ in range(size)] for _ in range(prompts)]
    mean = math.fsum(map(math.fsum, rewards)) / (prompts * size)
    for q, of in enumerate(rewards):
        common, own = [draw.gauss(0, prompt_noise) for _ in range(SIZE)], list[list[float]]()
        for i, reward in enumerate(of):
            advantage = reward - (mean if pooled else (math.fsum(of) - reward) / (size - 1))
            sign = 1 if reward else -1
            # What a prompt's responses have in common does not cancel, as where right and wrong ones differ alike.
            score = [draw.gauss(0, 1) + sign * c for c in common]
            score[0] += sign * clear * math.sqrt(SIZE)
            square = math.fsum(x * x for x in score)
            own.append([advantage * x / (prompts * size) for x in score])
            length = draw.randint(20, 30)
            responses.append(
                Response(
                    group=q,
                    gradient_square=(advantage / (prompts * size)) ** 2 * square,
                    square_norm=square,
                    reward=reward,
                    advantage=advantage,
                    length=length,
                    finished=True,
                    log_ratio=draw.gauss(0, 1e-6),
                    entropy=0.3,
                    logprob=-10.0,
                    prompt=f"prompt {t}.{q}",
                    text=f"answer {t}.{q}.{i}",
                )
            )
        parts.append(own)
    groups = [[prompts * math.fsum(of) for of in zip(*own, strict=True)] for own in parts]
    whole = [math.fsum(of) / prompts for of in zip(*groups, strict=True)]
    return StepRecord(
        step=t + 1,
        gradient_square=math.fsum(x * x for x in whole),
        group_squares=[math.fsum(x * x for x in group) for group in groups],
        responses=responses,
        learning_rate=0.02,
        plain=True,
    )


def fallen(to: float = 0.01, until: int = 32, gain: float = 0.1) -> list[StepRecord]:
    """The policy can nothing in the steps from 13 on; each step has promised this gain."""
    steps = run(solved=lambda t: to if 12 <= t < until else 0.6)
    return [replace(step, learning_rate=gain / (step.gradient_square + 1e-9)) for step in steps]


def changed(steps: Sequence[StepRecord], **fields: object) -> list[StepRecord]:
    """The same with these fields of every step."""
    return [replace(step, **fields) for step in steps]  # type: ignore[arg-type]


def responses(
    steps: Sequence[StepRecord], change: Callable[[Response, int, int], Response], only: Sequence[int] | None = None
) -> list[StepRecord]:
    """The same with responses changed, given each, its step and its place; ``only`` of these steps."""
    return [
        replace(step, responses=[change(one, step.step, place) for place, one in enumerate(step.responses)])
        if only is None or step.step in only
        else step
        for step in steps
    ]


@pytest.fixture
def whole(monkeypatch):
    """Every finding that a test meets has all that a reader is told."""
    made = Finding.__init__

    def checked(self, *args, **named):
        made(self, *args, **named)
        assert self.kind in get_args(Kind)
        assert self.sure in get_args(Sure)
        assert all(text and text == text.strip() for text in (self.said, self.evidence, self.fix))
        assert self.said.endswith((".", "”"))

    monkeypatch.setattr(Finding, "__init__", checked)
