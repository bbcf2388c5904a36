"""Curvature by differences of gradients, on functions whose curvature is known."""

import neighbours  # noqa: F401
import pytest
import torch
from smoothness import curved, largest


@pytest.mark.parametrize("spectrum", [[3.0, 1.0, 0.5], [-7.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
def test_the_largest_curvature_of_either_sign_is_found(spectrum):
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    hessian = basis @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ basis.T
    at = torch.randn(3, generator=generator, dtype=torch.float64)
    found = largest(lambda x: hessian @ x, at, generator)
    assert found == pytest.approx(max(map(abs, spectrum)), rel=1e-4, abs=1e-9)


def test_a_product_with_the_hessian_is_autograds():
    logits = torch.randn(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction = torch.nn.functional.normalize(torch.arange(5, dtype=torch.float64), dim=0)

    def log_prob(x):
        return torch.log_softmax(x, 0)[2]

    exact = torch.autograd.functional.hessian(log_prob, logits) @ direction
    torch.testing.assert_close(curved(torch.func.grad(log_prob), logits, direction), exact, rtol=1e-6, atol=1e-9)
