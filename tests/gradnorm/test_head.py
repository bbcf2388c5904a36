import pytest
import torch
from torch import nn

from oblr.gradnorm import head


@pytest.mark.parametrize("rows_at_once", [1, 7, 40])
def test_slices_give_the_scores_and_gradients_of_the_whole(monkeypatch, rows_at_once):
    torch.manual_seed(0)
    layer, h = nn.Linear(8, 40, bias=False), torch.randn(12, 8, requires_grad=True)
    targets, g, temperature = torch.randint(40, (12,)), torch.randn(12), 0.7
    with torch.no_grad():
        layer.weight *= 20  # sums of exponentials would overflow without their peak
    logprobs = (layer(h) / temperature).log_softmax(-1)
    picked = logprobs.gather(1, targets[:, None]).squeeze(1)
    expected = torch.autograd.grad((g * picked).sum(), (h, layer.weight))
    monkeypatch.setattr(head, "SLICE", rows_at_once * len(h))
    found = head.head_statistics(layer, h, targets, temperature)
    gradients = torch.autograd.grad((g * found.logprobs).sum(), (h, layer.weight))
    torch.testing.assert_close(found.logprobs, picked, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.entropy, -(logprobs.exp() * logprobs).sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.collision, logprobs.exp().square().sum(1), rtol=1e-4, atol=1e-6)
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 700, 7168, 8191])
def test_slices_begin_where_tensor_cores_can_read(n):
    """Rows of logits in bfloat16 must begin at multiples of 16 bytes, whatever number of positions there is."""
    weight = torch.empty(151_936, 1)
    starts, slices = zip(*head.row_slices(weight, n), strict=True)
    widths = [len(rows) for rows in slices]
    assert sum(widths) == len(weight)
    assert [start % 8 for start in starts] == [width % 8 for width in widths] == [0] * len(widths)
    assert max(widths) * n <= head.SLICE
