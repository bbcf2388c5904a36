"""Are the norms and gradients right on this device? Every tier and both passes against one backward a sequence.

In float32 they are compared with autograd's. In bfloat16 both are rounded, so both are compared with autograd's in
float32: ours may be hardly further from it than autograd's own are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from figures import Figure, at_most
from gpu_device import DEVICE, GPU, autocast, random_model, random_rollouts
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from oblr.batch.packing import pack
from oblr.batch.types import Rollout
from oblr.gradnorm.measure import GradNorms
from oblr.gradnorm.precision import no_autocast
from oblr.policy.attention import SDPA, VARLEN, choose_attention
from oblr.policy.model import PolicyModel

GROUP_SIZE, PROMPT = 4, 8
KINDS = [(tier, passes) for tier in ("exact", "sketch") for passes in ("one", "two")] + [("logit", "one")]
PRECISIONS = ("float32", "bf16-mixed")
#: of what is exact, in float32; and of its error over that of autograd in bfloat16
BOUND, OVER_AUTOGRAD = 1e-5, 1.25


@dataclass(frozen=True)
class Truth:
    """Attributes:
    norms: ``n_i``, float64 [S].
    gradient: ``Σ_i c_i g_i``, all parameters in a row, float64.
    groups: squared norms of each group's part of it, float64 [groups].
    """

    norms: Tensor
    gradient: Tensor
    groups: Tensor


def flat(lm: PreTrainedModel) -> Tensor:
    return torch.cat([p.grad.double().flatten() for p in lm.parameters()])


def oracle(model: PolicyModel, rollouts: list[Rollout], coefficients: Tensor) -> Truth:
    """Autograd's own backward, sequence by sequence."""
    norms, groups = [], []
    for i, rollout in enumerate(rollouts):
        model.zero_grad()
        function = model(pack([rollout]).to(DEVICE)).logprobs.sum()
        with no_autocast(function):
            function.backward()
        gradient = flat(model.lm)
        norms.append(gradient.square().sum())
        if i % GROUP_SIZE == 0:
            groups.append(torch.zeros_like(gradient))
        groups[-1] += coefficients[i] * gradient
    return Truth(torch.stack(norms), sum(groups), torch.stack([group.square().sum() for group in groups]))


def found(model: PolicyModel, rollouts: list[Rollout], coefficients: Tensor, norms: GradNorms) -> Truth:
    model.zero_grad()
    with norms.measure(model, model.lm, [pack(rollouts).to(DEVICE)], GROUP_SIZE) as measured:
        groups = measured.backward(coefficients)
    return Truth(measured.square_norms, flat(model.lm), groups)


def distance(a: Tensor, b: Tensor) -> float:
    return (torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)).item()


def spread(a: Tensor, b: Tensor) -> float:
    """Root mean square of the relative differences."""
    return (a / b - 1).square().mean().sqrt().item()


def errors(ours: Truth, truth: Truth) -> dict[str, float]:
    return {
        "n_i": spread(ours.norms, truth.norms),
        "the weighted gradient": distance(ours.gradient, truth.gradient),
        "group norms": spread(ours.groups, truth.groups),
    }


def compared(label: str, tier: str, found: dict[str, float], own: dict[str, float] | None) -> Iterator[Figure]:
    """Args:
    own: errors of autograd itself; None in float32, where it is what is right.
    """
    for what, error in found.items():
        if what == "n_i" and tier != "exact":  # others estimate it
            if tier == "sketch":
                yield Figure(f"{label}: error of {what}", error, "")
        elif own is None:
            yield at_most(f"{label}: error of {what}", error, "", BOUND)
        else:
            yield at_most(f"{label}: error of {what} over autograd's own", error / own[what], "", OVER_AUTOGRAD)


def measure(quick: bool) -> Iterator[Figure | str]:
    hidden, layers, vocabulary, longest = (64, 3, 256, 40) if quick else (512, 7, 8192, 512)
    head = 16 if quick else 64
    lengths = torch.linspace(longest // 4, longest, 8)[torch.randperm(8, generator=torch.Generator().manual_seed(2))]
    rollouts = random_rollouts(lengths.int().tolist(), PROMPT, vocabulary)
    coefficients = torch.linspace(-1, 1.3, len(rollouts), dtype=torch.float64, device=DEVICE)
    heads = {"num_attention_heads": hidden // head, "num_key_value_heads": hidden // head // 2, "head_dim": head}
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers}
    if not GPU:
        yield "varlen attention and fused kernels are left out: they know GPUs alone"
    for tied in (False, True):
        config = Qwen3Config(vocab_size=vocabulary, tie_word_embeddings=tied, **sizes, **heads)
        right: Truth | None = None
        for precision in PRECISIONS:
            mixed = precision == "bf16-mixed"
            own = choose_attention(config, GPU, torch.bfloat16 if mixed else torch.float32)
            kernels = (SDPA, VARLEN) if own == VARLEN else (SDPA,)
            variants = [(attention, fused) for attention in kernels for fused in ((False, True) if GPU else (False,))]
            if mixed and GPU and own != VARLEN:
                yield f"varlen attention is left out: torch {torch.__version__} has none with shared heads"
            for attention, fused in variants:
                model = PolicyModel(random_model(config, attention, fused), 0.9)
                label = f"{'tied' if tied else 'untied'}, {precision}, {attention}{', fused' * fused}"
                with autocast(mixed):
                    truth = oracle(model, rollouts, coefficients)
                    right = right or truth
                    own_errors = errors(truth, right) if mixed else None
                    if own_errors:
                        for what, error in own_errors.items():
                            yield Figure(f"{label}: autograd's error of {what}", error, "")
                    for tier, passes in KINDS:
                        ours = found(model, rollouts, coefficients, GradNorms(tier, passes))
                        kind = f"{label}, {tier}, {passes} pass{'es' * (passes == 'two')}"
                        yield from compared(kind, tier, errors(ours, right if mixed else truth), own_errors)
