import pytest
import torch

from oblr.gradnorm import contractions
from oblr.packing import Segments

IDS = torch.tensor([0, 0, 2, -1, 1, 2, 2, -1, 0, 2])


@pytest.mark.parametrize(("d_in", "d_out"), [(3, 2), (40, 50)])  # T = 4: direct form, Gram form
def test_linear_square_norms(d_in, d_out, monkeypatch):
    a, b = torch.randn(10, d_in), torch.randn(10, d_out)
    expected = torch.stack([(b[s == IDS].T @ a[s == IDS]).square().sum() for s in range(3)])
    segments = Segments(IDS, 3)
    torch.testing.assert_close(contractions.linear_square_norms(a, b, segments), expected)
    monkeypatch.setattr(contractions, "CHUNK", 1)  # one segment at a time
    torch.testing.assert_close(contractions.linear_square_norms(a, b, segments), expected)


def test_bfloat16_inputs_are_accumulated_in_float32():
    """Two tokens that cancel but for 1 %: the norm must be right to 1 %, which sums in bfloat16 are far from."""
    torch.manual_seed(0)
    a = torch.randn(1, 64).repeat(2, 1).bfloat16()
    b = torch.randn(1, 32).repeat(2, 1)
    b[1] = -b[1] * 1.01
    b = b.bfloat16()
    exact = (b.double().T @ a.double()).square().sum()
    norm = contractions.linear_square_norms(a, b, Segments(torch.zeros(2, dtype=torch.long), 1))
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm[0].double(), exact, rtol=1e-2, atol=0)


def test_embedding_rows_of_equal_token_add_up():
    ids, e = torch.tensor([5, 7, 5, 0, 7, 5, 1, 1, 2, 1]), torch.randn(10, 4)
    expected = []
    for s in range(3):
        table = torch.zeros(8, 4).index_add_(0, ids[s == IDS], e[s == IDS])
        expected.append(table.square().sum())
    norms = contractions.embedding_square_norms(ids, e, Segments(IDS, 3))
    torch.testing.assert_close(norms, torch.stack(expected))
