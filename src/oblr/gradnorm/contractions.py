"""Squared gradient norms per segment from what backpropagation already holds.

A layer's weight gradient for one segment is a contraction over the segment's tokens of the layer's input ``A`` and
the gradient of its output ``B``. Its norm needs no such gradient to be formed for every segment at once: see
Goodfellow 2015 (arXiv 1510.01799) and, for sequences, Li et al. 2022 (arXiv 2110.05679). Tokens are flat, [n, d];
all sums are in float32 whatever the inputs, because nearly cancelling gradients lose everything in bfloat16.
"""

import torch
from torch import Tensor

from oblr.packing import Segments

#: Most floats held at once in the intermediate of a batched product.
CHUNK = 2**24


def linear_square_norms(a: Tensor, b: Tensor, segments: Segments) -> Tensor:
    """``‖Σ_t b_t a_tᵀ‖²`` per segment, float32 [S].

    Gram form ``⟨AAᵀ, BBᵀ⟩`` costs T²·(d_in + d_out), direct form ``‖BᵀA‖²`` costs T·d_in·d_out: the cheaper is taken.
    """
    padded_a, padded_b = segments.pad(a).float(), segments.pad(b).float()
    length, d_in, d_out = padded_a.shape[1], a.shape[-1], b.shape[-1]
    gram = length * (d_in + d_out) < d_in * d_out
    step = max(1, CHUNK // (length * length if gram else d_in * d_out))
    norms = []
    for part_a, part_b in zip(padded_a.split(step), padded_b.split(step), strict=True):
        if gram:
            products = (part_a @ part_a.mT) * (part_b @ part_b.mT)
        else:
            products = (part_b.mT @ part_a).square_()
        norms.append(products.sum((1, 2)))
    return torch.cat(norms)


def linear_sketch(a: Tensor, b: Tensor, segments: Segments, probes: Tensor) -> Tensor:
    """Unbiased estimate of ``‖Σ_t b_t a_tᵀ‖²`` per segment, float32 [S]: ``(1/k) Σ_z ‖Bᵀ(Az)‖²``, ``E zzᵀ = I``.

    Projecting one side alone has a relative variance of 2/k over the effective rank of the gradient; projecting both,
    2/k and more. Both cost T·k·(d_in + d_out). The wider side is projected, whichever that is.

    Args:
        probes: random signs [max(d_in, d_out), k].
    """
    wide, narrow = (a, b) if a.shape[-1] >= b.shape[-1] else (b, a)
    projected = segments.pad(wide.float() @ probes)
    return (segments.pad(narrow).float().mT @ projected).square().sum((1, 2)) / probes.shape[1]


def linear_gradient(a: Tensor, b: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Weight gradient ``Σ_t b_t a_tᵀ`` of all segments [d_out, d_in] and its squared norm per segment [S].

    Forms one segment's gradient at a time, so the product costs what the plain weight gradient costs.
    """
    total, norms = None, []
    for span in segments.spans:
        gradient = b[span].float().mT @ a[span].float()
        norms.append(torch.linalg.vector_norm(gradient).square())
        total = gradient if total is None else total.add_(gradient)
    assert total is not None
    return total, torch.stack(norms)


def sum_square_norms(products: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """For parameters whose gradient is a plain sum over tokens (biases, scales): ``products`` [n, d] → (sum, norms)."""
    sums = segments.sum(products.float())
    return sums.sum(0), sums.square().sum(1)


def embedding_square_norms(ids: Tensor, e: Tensor, segments: Segments) -> Tensor:
    """Squared norm [S] of the embedding gradient: rows of equal token add up, ``Σ_{t,u} [id_t = id_u] ⟨e_t, e_u⟩``."""
    padded_ids, padded_e = segments.pad(ids), segments.pad(e).float()
    same = padded_ids[:, :, None] == padded_ids[:, None, :]
    return ((padded_e @ padded_e.mT) * same).sum((1, 2))


def tied_cross_terms(ids: Tensor, e: Tensor, segments: Segments, h: Tensor, d: Tensor, targets: Segments) -> Tensor:
    """``2⟨S(E), DᵀH⟩ = 2 Σ_{t,u} D[u, id_t] ⟨E_t, H_u⟩`` per segment [S]: what a tied embedding adds to both norms.

    Args:
        ids: input token ids [n].  e: gradient of their embeddings [n, D].  segments: of those tokens.
        h: inputs of the head [m, D].  d: gradient of the logits [m, V].  targets: segments of those positions.
    """
    padded_ids, padded_e = segments.pad(ids), segments.pad(e).float()
    padded_h, padded_d = targets.pad(h).float(), targets.pad(d).float()
    columns = padded_ids[:, None, :].expand(-1, padded_d.shape[1], -1)
    return 2 * (padded_d.gather(2, columns) * (padded_h @ padded_e.mT)).sum((1, 2))
