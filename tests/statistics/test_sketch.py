import pytest
import torch

from oblr.batch.segments import Segments
from oblr.statistics.sketch import Sketch

CPU = torch.device("cpu")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [(5, 5, 5), (3, 0, 7)])
@pytest.mark.parametrize("shape", [(40, 24), (16, 200), (7, 9)])
def test_of_products_is_that_of_the_sum(shape, sizes):
    """A part of the rows at a time too."""
    host = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    segments, b, a = Segments(host, 3), drawn(len(host), shape[0]), drawn(len(host), shape[1], seed=1)
    sums = torch.stack([b[host == s].mT @ a[host == s] for s in range(3)])
    sketch = Sketch(torch.Size(shape), 16, "seed", "name", CPU)
    expected = sketch.of_sums(sums)
    torch.testing.assert_close(sketch.of_products(b, a, segments), expected, rtol=1e-4, atol=1e-4)
    if shape[0] > 16:
        slices = [sketch.of_products(b[:, rows], a, segments, rows.start) for rows in (slice(0, 32), slice(32, 200))]
        torch.testing.assert_close(
            slices[0] + slices[1] if shape[0] > 32 else slices[0], expected, rtol=1e-4, atol=1e-4
        )


def test_of_lookups_is_that_of_the_table():
    ids, host, b = torch.tensor([3, 99, 3, 7, 7, 0]), torch.tensor([0, 0, 1, 1, -1, 1]), drawn(6, 24)
    table = torch.zeros(2, 100, 24)
    for token, s, row in zip(ids, host, b, strict=True):
        if s >= 0:
            table[s, token] += row
    sketch = Sketch(torch.Size((100, 24)), 16, "seed", "name", CPU)
    torch.testing.assert_close(
        sketch.of_lookups(ids, b, Segments(host, 2)), sketch.of_sums(table), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("shape", [(60, 50), (300,), (6, 500), (20, 3, 20)])
def test_inner_products_are_without_bias_and_as_near_as_promised(shape):
    g, h = drawn(2, *shape)
    h = h + 0.5 * g
    exact, scale = (g * h).sum(), g.norm() * h.norm()
    found = []
    for seed in range(400):
        x, y = Sketch(torch.Size(shape), 16, str(seed), "name", CPU).of_sums(torch.stack([g, h]))
        found.append(x @ y)
    errors = (torch.stack(found) - exact) / scale
    assert errors.mean().abs() < 4 * errors.std() / 20
    assert errors.std() < (4 / 16) ** 0.5


def test_a_small_gradient_is_left_as_it_is():
    g = drawn(1, 16, 9)
    assert torch.equal(
        Sketch(torch.Size((16, 9)), 16, "seed", "name", CPU).of_sums(g).flatten().sort()[0], g.flatten().sort()[0]
    )


def test_names_and_seeds_have_signs_of_their_own():
    def of(seed, name):
        return Sketch(torch.Size((90, 90)), 16, seed, name, CPU).of_sums(drawn(1, 90, 90))

    assert torch.equal(of("a", "b"), of("a", "b"))
    assert not torch.equal(of("a", "b"), of("a", "c"))
    assert not torch.equal(of("a", "b"), of("c", "b"))
