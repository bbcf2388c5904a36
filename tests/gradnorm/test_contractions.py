import pytest
import torch

from oblr.batch.segments import Segments
from oblr.gradnorm import contractions

IDS = torch.tensor([0, 0, 2, -1, 1, 2, 2, -1, 0, 2])


def each_segment(a, b):
    return torch.stack([(b[s == IDS].T @ a[s == IDS]).square().sum() for s in range(3)])


@pytest.mark.parametrize(("d_in", "d_out"), [(3, 2), (40, 50)])  # T = 4: direct form, Gram form
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_exact_norms(d_in, d_out, rows):
    a, b, other = torch.randn(10, d_in), torch.randn(10, d_out), torch.randn(10, d_in)
    norms, segments = contractions.ExactNorms(rows), Segments(IDS, 3)
    for x, y in ((a, b), (a, 2 * b), (other, b), (a, b)):  # what is remembered of an input belongs to it alone
        torch.testing.assert_close(norms(x, y, segments), each_segment(x, y))


@pytest.mark.parametrize("lengths", [(7, 7, 7), (70, 65, 129), (64, 64), (1,)])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_gram_matrices_are_halved_whatever_the_length(lengths, rows):
    """Odd ones are filled up, blocks of one segment are not taken for another's, and halves count twice."""
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    a, b = torch.randn(len(ids), 160), torch.randn(len(ids), 150)
    expected = torch.stack([(b[ids == s].T @ a[ids == s]).square().sum() for s in range(len(lengths))])
    norms = contractions.ExactNorms(rows)
    torch.testing.assert_close(norms(a, b, Segments(ids, len(lengths))), expected, rtol=1e-4, atol=0)
    assert norms.shares  # Gram matrices were taken, not gradients


def test_the_sketch_is_unbiased_and_its_spread_is_as_documented():
    a, b = torch.randn(10, 20), torch.randn(10, 30)
    exact, generator = each_segment(a, b), torch.Generator().manual_seed(0)
    draws = torch.stack([contractions.SketchNorms(4, generator)(a, b, Segments(IDS, 3)) for _ in range(4000)])
    assert ((draws.mean(0) - exact) / (draws.std(0) / len(draws) ** 0.5)).abs().max() < 4
    for s in range(3):
        spectrum = torch.linalg.svdvals(b[s == IDS].T @ a[s == IDS]) ** 2
        assert (draws[:, s].std() / exact[s]) ** 2 < 2 / 4 * spectrum.square().sum() / spectrum.sum() ** 2 * 1.1


@pytest.mark.parametrize("words", [1, 2])
def test_signs_are_fair_and_independent(words):
    drawn = torch.empty(20_000, words, dtype=torch.int32).random_(generator=torch.Generator().manual_seed(0))
    signs = contractions.signs_of(drawn).double()
    assert signs.shape == (20_000, words * contractions.BITS)
    assert signs.abs().eq(1).all()
    assert signs.mean(0).abs().max() < 5.5 / len(signs) ** 0.5
    between = signs.T @ signs / len(signs) - torch.eye(signs.shape[1])
    assert between.abs().max() < 5.5 / len(signs) ** 0.5


def test_bfloat16_inputs_are_accumulated_in_float32():
    """Two tokens that cancel but for 1 %: the norm must be right to 1 %, which sums in bfloat16 are far from."""
    torch.manual_seed(0)
    a = torch.randn(1, 64).repeat(2, 1).bfloat16()
    b = torch.randn(1, 32).repeat(2, 1)
    b[1] = -b[1] * 1.01
    b = b.bfloat16()
    exact = (b.double().T @ a.double()).square().sum()
    norm = contractions.ExactNorms()(a, b, Segments(torch.zeros(2, dtype=torch.long), 1))
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm[0].double(), exact, rtol=1e-2, atol=0)
