"""At the second update of a batch, in bfloat16: ratios to the engine, or to the policy's own log-probabilities?

    python studies/second_update.py [--quick]

As ``ratios.py``, with responses of 64 tokens and weights that AdamW has moved by one step of 1e-6, TRL's and verl's.
The true ratio is that of the float32 policies after and before it. The ratio is the bfloat16 policy's over a
denominator of before: the float32 engine's, or the bfloat16 policy's own, which makes all ratios of the first update 1.
Errors of ``log ρ`` are root mean squares; those of gradients are relative to the float32 policy's with the true ``ρ``.
"""

import neighbours  # noqa: F401
import torch
from figures import Figure, asked_to_be_quick, write
from ratios import LOSSES, NONE, SEED, TOKEN, Policy, Step, Study, compared, cut, estimate, pocket, smollm2_135m
from torch import Tensor

#: AdamW's.
RATE = 1e-6


def dither(policy: Policy) -> None:
    """Draw the bits of the weights that bfloat16 leaves out, which are as good as random in the midst of training.

    Weights of 4-bit numbers often lie halfway between two of bfloat16's: the smallest step would move them by a whole
    spacing.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for p in policy.parameters:
            bits = torch.randint(-(2**15), 2**15, p.shape, generator=generator, dtype=torch.int32)
            rounded = p.bfloat16().float()
            p.copy_((rounded.view(torch.int32) + bits * (rounded != 0)).view(torch.float32))


def size(name: str, values: Tensor, prompts: int) -> Figure:
    squares = values.view(prompts, -1).square()
    return estimate(name, "nats", lambda q: squares[q].mean().sqrt(), prompts)


def measure(study: Study, length: int) -> list[Figure]:
    policy, prompts = study.policy, study.prompts
    dither(policy)
    engine = policy.logprobs(cut(study.rollouts, length), bfloat16=False)
    denominators = {"engine": engine, "policy": policy.logprobs(engine, bfloat16=True)}
    found, rewards = policy.measure(engine), study.rewards(engine)
    advantages = Step.of(NONE, found, found.tokens, rewards).advantages.flatten()
    policy.move(NONE.coefficients(found.tokens, advantages, per_token=False), engine, RATE)

    exact, moved = policy.measure(engine, bfloat16=False), policy.measure(engine)
    truth, right = exact.tokens.logs, Step.of(LOSSES["sequence"], exact, exact.tokens, rewards)
    figures = [
        size("true log ratio of a token", truth, prompts),
        size("true log ρ", exact.tokens.sequence_logs, prompts),
        compared("none", Step.of(NONE, moved, moved.tokens, rewards), right, "float32's"),
    ]
    for name, rollouts in denominators.items():
        by_token = policy.measure(rollouts, factors=TOKEN.factors)
        tokens = by_token.tokens
        errors = tokens.logs - truth
        figures.append(size(f"by the {name}'s: error of a token's log ratio", errors, prompts))
        figures.append(size(f"by the {name}'s: error of log ρ", tokens.sums(errors), prompts))
        for choice, loss in LOSSES.items():
            if choice != "none":
                step = Step.of(loss, by_token if loss.per_token else moved, tokens, rewards)
                figures.append(compared(f"by the {name}'s, {choice}", step, right, "float32's"))
    return figures


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    figures = measure(Study(pocket() if quick else smollm2_135m()), 16 if quick else 64)
    write("second_update-quick" if quick else "second_update", figures)


if __name__ == "__main__":
    main()
