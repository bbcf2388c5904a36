"""What do importance ratios make of the gradient, where the policy computes in bfloat16?

    python studies/ratios.py [--quick]

The engine is float32 and the policy has its weights, but its products are bfloat16 (``trainer.precision=bf16-mixed``).
Rollouts are on-policy: the true ratio is 1, and what a ratio says beyond that is rounding, ``Δ`` nats a token. Eight
prompts to SmolLM2-135M-Instruct, four responses each, at temperature 1 and beyond their ends, so that shorter lengths
are prefixes of the same 512 tokens. The reward is the share of the letter e in the response, in percent. Gradients are
the project's, from ``PolicyGradientLoss`` and the gradient-weighted leave-one-out baseline, by choice:

- ``none``: ratio 1. That is what the policy's own log-probabilities as denominators come to at the first update.
- ``sequence``: ``ρ = exp(Σ_t Δ_t)``. ``sequence ≤ C``, ``token ≤ C``: truncated. Without its cap ``token`` is the same
  where no token's ratio exceeds 2.

Figures, at each length:

- Effective sample size of ρ: ``(Σρ)²/(B Σρ²)``. Effective responses in a group: ``(Σw)²/Σw²`` of the baseline's
  weights ``w = ρ² n``.
- Error ``‖ĝ − ĝ_1‖/‖ĝ_1‖`` on the same rollouts, ``ĝ_1`` being that of ``none``. That of ``none`` itself is against
  the float32 policy's gradient, at one length.
- ``dropped``: the share of tokens (PPO) and responses (GSPO) that clipping drops before anything has moved.

Then the same with the log-probabilities of a bfloat16 engine (weights and activations), on the same responses; what a
second update adds, ``second_update.py`` says. ``drawn``: responses of tokens whose ``Δ`` are drawn independently from
those measured. Gradients are compared by their projections to 2^18 dimensions (random signs, summed in buckets).
Intervals are 95 %, by jackknife over prompts. ``--quick`` takes the pocket policy; what SmolLM2 needs,
``benchmarks/smollm2.py`` says.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import neighbours  # noqa: F401
import torch
from figures import ROOT, Estimate, Figure, asked_to_be_quick, write
from omegaconf import OmegaConf
from scipy.stats import t as student
from smollm2 import smollm2
from torch import Tensor

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.packing import pack
from oblr.batch.types import ResponseTokens, Rollout, Sampling
from oblr.data.procedural import ReasoningGymProblems
from oblr.gradnorm.measure import Factors, GradNorms
from oblr.losses.gspo import GSPOLoss
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.losses.ppo_clip import PPOClipLoss
from oblr.policy.loading import load_config, load_model, load_tokenizer, weights_digest
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem
from oblr.rollout.hf import HFEngine
from oblr.run.randomness import derived_seed

GROUP_SIZE, SEED = 4, 1
BASELINE, UNIFORM = GradientWeightedBaseline(), GradNorms("uniform")
NONE, TOKEN = PolicyGradientLoss("none"), PolicyGradientLoss("token", 2.0)
LOSSES = {
    "none": NONE,
    "sequence": PolicyGradientLoss("sequence"),
    "sequence ≤ 5": PolicyGradientLoss("sequence", 5.0),
    "sequence ≤ 2": PolicyGradientLoss("sequence", 2.0),
    "token ≤ 2": TOKEN,
}
CLIPPED = {"ppo_clip": PPOClipLoss(), "gspo": GSPOLoss()}
DRAWN_LENGTHS = (64, 128, 256, 512, 1024, 2048)
QUESTIONS = (
    "Tell me a story about a lighthouse keeper.",
    "Explain why the sky is blue.",
    "Write instructions for baking bread.",
    "What were the causes of the First World War?",
    "Describe a walk through a forest in autumn.",
    "How does a computer add two numbers?",
    "Give advice to someone who starts a new job.",
    "Compare cats and dogs as pets.",
)


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        path: of the policy.
        unused: a token that ends responses because none ever has it.
        lengths: of the responses.
        exact: that length for which there are float32 gradients.
        buckets: dimensions that gradients are projected to.
    """

    path: Path
    prompts: list[list[int]]
    unused: int
    lengths: tuple[int, ...]
    exact: int
    buckets: int


def pocket() -> Setting:
    path = ROOT / "models" / "pocket"
    data, tokenizer = OmegaConf.load(ROOT / "conf" / "data" / "chain_sum.yaml").train, load_tokenizer(str(path))
    problems = ReasoningGymProblems(data.task, 8, SEED, data.template, data.params)
    prompts = [tokenizer.encode(problem.prompt) for problem in problems]
    return Setting(path, prompts, tokenizer.convert_tokens_to_ids("<|pad|>"), (16, 32), 16, 2**14)


def smollm2_135m() -> Setting:
    path = smollm2()
    tokenizer = load_tokenizer(str(path))
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    unused = tokenizer.convert_tokens_to_ids("<empty_output>")
    return Setting(path, prompts, unused, (32, 64, 128, 256, 512), 128, 2**18)


def sample(setting: Setting) -> list[Rollout]:
    """Responses of the float32 engine, all of the same length; those of an earlier call are used again."""
    weights = weights_digest(str(setting.path), load_config(str(setting.path)))
    key = sha256(repr((weights, setting.prompts, setting.lengths, GROUP_SIZE, SEED)).encode()).hexdigest()[:16]
    kept = ROOT / ".cache" / f"ratios-{key}.pt"
    if not kept.exists():
        engine = HFEngine(str(setting.path), "float32")
        engine.start()
        engine.weight_version = 0  # its folder's weights are the policy's
        sampling = Sampling(GROUP_SIZE, 1.0, max(setting.lengths), (setting.unused,))
        kept.parent.mkdir(exist_ok=True)
        seeds = [derived_seed(SEED, q) for q in range(len(setting.prompts))]
        torch.save(engine.generate(setting.prompts, sampling, seeds), kept)
    groups: list[list[Completion]] = torch.load(kept, weights_only=False)
    problem = Problem("", "", "")
    pairs = zip(setting.prompts, groups, strict=True)
    return [Rollout(problem, prompt, completion, "", 0.0) for prompt, group in pairs for completion in group]


# --- gradients ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Of all responses: their tokens, ``‖Σ_t f_t ∇log π_t‖²`` float64 [S], and projections of it [S, buckets]."""

    tokens: ResponseTokens
    square_norms: Tensor
    projections: Tensor


class Policy:
    """A policy, and the random projection of its gradients."""

    def __init__(self, path: Path, buckets: int):
        self.model = PolicyModel(load_model(str(path), "float32"), 1.0)
        self.parameters = list(self.model.parameters())
        size, generator = sum(p.numel() for p in self.parameters), torch.Generator().manual_seed(SEED)
        rows = -(-size // buckets)
        self.gradient = torch.zeros(rows, buckets)
        self.signs = torch.randint(2, (rows, buckets), generator=generator, dtype=torch.int8).mul_(2).sub_(1)
        places = self.gradient.flatten()[:size].split([p.numel() for p in self.parameters])
        for p, place in zip(self.parameters, places, strict=True):
            p.grad = place.view_as(p)

    def project(self) -> Tensor:
        """Inner products of projections are those of gradients, up to about 1/√buckets of the product of norms."""
        out = torch.zeros(self.gradient.shape[1])
        for row, signs in zip(self.gradient, self.signs, strict=True):
            out.addcmul_(row, signs.float())
        return out

    def logprobs(self, rollouts: Sequence[Rollout], bfloat16: bool) -> list[Rollout]:
        """The rollouts with this policy's log-probabilities for the engine's."""
        sampled = []
        for rollout in rollouts:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                logprobs = self.model(pack([rollout])).logprobs.tolist()
            sampled.append(replace(rollout, completion=replace(rollout.completion, logprobs=logprobs)))
        return sampled

    def measure(self, rollouts: Sequence[Rollout], bfloat16: bool = True, factors: Factors | None = None) -> Found:
        found, norms, projections = [], [], []
        for rollout in rollouts:
            self.gradient.zero_()
            with (
                torch.autocast("cpu", torch.bfloat16, enabled=bfloat16),
                UNIFORM.measure(self.model, self.model.lm, [pack([rollout])], 1, factors=factors) as measured,
            ):
                norms.append(measured.backward(torch.ones(1, dtype=torch.float64)))
            found.append(measured.tokens)
            projections.append(self.project())
        return Found(joined(found), torch.cat(norms), torch.stack(projections))

    def move(self, coefficients: Tensor, rollouts: Sequence[Rollout], rate: float) -> None:
        """One step of AdamW up the float32 gradient ``Σ_i c_i ∇log π(o_i|q)``."""
        self.gradient.zero_()
        for rollout, c in zip(rollouts, coefficients, strict=True):
            with UNIFORM.measure(self.model, self.model.lm, [pack([rollout])], 1) as measured:
                measured.backward(-c[None])
        torch.optim.AdamW(self.parameters, lr=rate).step()


def joined(parts: Sequence[ResponseTokens]) -> ResponseTokens:
    """Single responses as groups of :data:`GROUP_SIZE`."""
    return ResponseTokens(
        logs=torch.cat([part.logs for part in parts]),
        energy=torch.cat([part.energy for part in parts]),
        sequences=torch.cat([part.sequences + i for i, part in enumerate(parts)]),
        behaviour=torch.cat([part.behaviour for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
        group_size=GROUP_SIZE,
    )


def cut(rollouts: Sequence[Rollout], length: int) -> list[Rollout]:
    """The first tokens of every response."""

    def prefix(c: Completion) -> Completion:
        return Completion(c.token_ids[:length], c.logprobs[:length], False)

    return [replace(rollout, completion=prefix(rollout.completion)) for rollout in rollouts]


@dataclass(frozen=True)
class Step:
    """What a loss makes of a batch: ``w_i`` and ``A_i`` [N, G], and the group gradients' projections [N, buckets]."""

    weights: Tensor
    advantages: Tensor
    gradients: Tensor

    @classmethod
    def of(cls, loss: PolicyGradientLoss, found: Found, tokens: ResponseTokens, rewards: Tensor) -> "Step":
        weights = loss.reward_weights(tokens, found.square_norms).view_as(rewards)
        advantages = BASELINE(Groups(rewards, weights, tokens.lengths.view_as(rewards), rewards))
        coefficients = loss.coefficients(tokens, advantages.flatten(), per_token=False).float()
        parts = coefficients[:, None] * found.projections
        return cls(weights, advantages, parts.view(*rewards.shape, -1).sum(1))


# --- figures --------------------------------------------------------------------------------------------------------


def estimate(name: str, unit: str, statistic: Callable[[Tensor], Tensor | float], prompts: int) -> Estimate:
    """A statistic of prompts, given their indices, and its interval from leaving each of them out."""
    everyone = torch.arange(prompts)
    value = float(statistic(everyone))
    without = torch.tensor([float(statistic(everyone[everyone != q])) for q in range(prompts)])
    spread = ((prompts - 1) * without.var(correction=0)).sqrt().item() * float(student.ppf(0.975, prompts - 1))
    low, high = value - spread, value + spread
    return Estimate(name, value, f"{unit} [{low:.3g}, {high:.3g}]".strip(), low=low, high=high)


def compared(name: str, step: Step, right: Step, unit: str) -> Figure:
    """How far a step is from the right one on the same rollouts."""
    off, whole = ((a @ a.T).double() for a in (step.gradients - right.gradients, right.gradients))

    def error(q: Tensor) -> Tensor:
        return (off[q][:, q].mean() / whole[q][:, q].mean()).sqrt()

    return estimate(f"{name}: error of ĝ", f"× {unit}", error, len(off))


def effective(name: str, logs: Tensor) -> Figure:
    """Of log ρ [N, G]."""

    def size(q: Tensor) -> Tensor:
        ratios = logs[q].exp()
        return ratios.mean().square() / ratios.square().mean()

    return estimate(f"{name}: effective sample size of ρ", "of 1", size, len(logs))


def effective_group(name: str, weights: Tensor) -> Figure:
    """``(Σw)²/Σw²`` of the baseline's weights [N, G] in a group."""
    sizes = weights.sum(1).square() / weights.square().sum(1)
    return estimate(
        f"{name}: effective responses in a group", f"of {GROUP_SIZE}", lambda q: sizes[q].mean(), len(sizes)
    )


def gap(name: str, logs: Tensor) -> list[Figure]:
    """|Δ| of tokens [N, G·T]."""
    return [
        estimate(f"{name}: |Δ| of a token, mean", "nats", lambda q: logs[q].abs().mean(), len(logs)),
        estimate(f"{name}: Δ of a token, standard deviation", "nats", lambda q: logs[q].std(), len(logs)),
    ]


def drawn(name: str, gaps: Tensor) -> list[Figure]:
    """Ratios of responses of tokens drawn from ``gaps`` [n] one by one, with 1 as the mean of a token's ratio."""
    logs, figures = gaps - gaps.exp().mean().log(), []
    for length in DRAWN_LENGTHS:
        # E ρ² in closed form: a mean of a few draws does not see its largest
        size = math.exp(-length * (2 * logs).exp().mean().log())
        figures.append(Figure(f"{name}, drawn, {length} tokens: effective sample size of ρ", size, "of 1"))
    return figures


class Study:
    """All measurements of one setting, on the same rollouts."""

    def __init__(self, setting: Setting):
        self.setting, self.prompts = setting, len(setting.prompts)
        self.rollouts, self.tokenizer = sample(setting), load_tokenizer(str(setting.path))
        self.policy = Policy(setting.path, setting.buckets)
        self.measured: dict[int, Found] = {}

    @cached_property
    def rounded(self) -> list[Rollout]:
        """The rollouts with the log-probabilities of a bfloat16 engine."""
        engine = Policy(self.setting.path, 1)
        engine.model.lm.to(torch.bfloat16)
        return engine.logprobs(self.rollouts, bfloat16=False)

    def rewards(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Share of the letter e, in percent, float32 [N, G]."""
        texts = self.tokenizer.batch_decode([rollout.completion.token_ids for rollout in rollouts])
        shares = [100 * text.count("e") / max(len(text), 1) for text in texts]
        return torch.tensor(shares).view(-1, GROUP_SIZE)

    def gaps(self) -> list[Figure]:
        """How far the policy is from a float32 and a bfloat16 engine, token by token, and what that adds up to."""
        own = logprobs(self.policy.logprobs(self.rollouts, bfloat16=True))
        figures = []
        for name, rollouts in (("float32", self.rollouts), ("bfloat16", self.rounded)):
            gaps = own - logprobs(rollouts)
            figures += gap(f"{name} engine", gaps.view(self.prompts, -1)) + drawn(f"{name} engine", gaps.flatten())
        return figures

    def on_policy(self, length: int) -> list[Figure]:
        """Every choice with responses of this length."""
        rollouts = cut(self.rollouts, length)
        rewards, name = self.rewards(rollouts), f"{length} tokens"
        found = self.measured[length] = self.policy.measure(rollouts)
        by_token = self.policy.measure(rollouts, factors=TOKEN.factors)
        figures = self.choices(name, found, by_token, rewards)
        errors = found.projections.double().square().sum(1) / found.square_norms - 1
        figures.append(Figure(f"{name}: relative error of ‖∇log π‖² projected, largest", errors.abs().max().item(), ""))
        if length == self.setting.exact:
            exact = self.policy.measure(rollouts, bfloat16=False)
            right, none = (Step.of(NONE, own, own.tokens, rewards) for own in (exact, found))
            figures.append(compared(f"{name}, none", none, right, "float32's"))
        return figures

    def bfloat16_engine(self, length: int) -> list[Figure]:
        """The same responses, had a bfloat16 engine named their probabilities; it would have drawn a few others."""
        rollouts, found = cut(self.rounded, length), self.measured[length]
        by_token = self.policy.measure(rollouts, factors=TOKEN.factors)
        return self.choices(f"bfloat16 engine, {length} tokens", found, by_token, self.rewards(rollouts))

    def choices(self, name: str, found: Found, by_token: Found, rewards: Tensor) -> list[Figure]:
        """Every loss beside ``none``, and what clipping losses drop at the first update."""
        tokens = by_token.tokens
        figures = [effective(name, tokens.sequence_logs.view_as(rewards))]
        steps = {
            choice: Step.of(loss, by_token if loss.per_token else found, tokens, rewards)
            for choice, loss in LOSSES.items()
        }
        for choice, step in steps.items():
            if choice != "none":
                figures.append(compared(f"{name}, {choice}", step, steps["none"], "none's"))
            figures.append(effective_group(f"{name}, {choice}", step.weights))
        advantages = steps["none"].advantages.flatten()
        for choice, loss in CLIPPED.items():
            dropped = (loss.factors(tokens, advantages) == 0).double().view(self.prompts, -1)
            label = f"{name}, {choice}: dropped at the first update"
            figures.append(estimate(label, "of 1", lambda q, dropped=dropped: dropped[q].mean(), self.prompts))
        return figures


def logprobs(rollouts: Sequence[Rollout]) -> Tensor:
    """The engine's, of responses of one length, float64 [S, T]."""
    return torch.tensor([rollout.completion.logprobs for rollout in rollouts], dtype=torch.float64)


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    study = Study(pocket() if quick else smollm2_135m())
    figures = study.gaps()
    for length in study.setting.lengths:
        figures += study.on_policy(length)
    figures += study.bfloat16_engine(max(study.setting.lengths))
    write("ratios-quick" if quick else "ratios", figures)


if __name__ == "__main__":
    main()
