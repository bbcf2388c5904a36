"""Against Opacus where Opacus works: untied weights, one sequence a row."""

import pytest
import torch
from conftest import make_rollouts, tiny_model
from ghost_clipping import GhostClipping

from oblr.batch.packing import pack
from oblr.gradnorm.measure import GradNorms
from oblr.policy.model import PolicyModel

COEFFICIENTS = torch.tensor([0.5, -1.0, 2.0, 0.1])


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("passes", ["one", "two"])
def test_norms_and_gradient_are_those_of_ghost_clipping(passes):
    rollouts, lm, theirs = make_rollouts([5, 17, 1, 40]), tiny_model(tied=False), tiny_model(tied=False)
    with GradNorms("exact", passes).measure(PolicyModel(lm, 1.0), lm, [pack(rollouts)], 4) as measured:
        measured.backward(COEFFICIENTS)

    rows = [torch.tensor(r.prompt_ids + r.completion.token_ids) for r in rollouts]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    first, end = torch.tensor([len(r.prompt_ids) for r in rollouts]), torch.tensor([len(row) for row in rows])
    peer = GhostClipping(theirs)
    norms = peer.update(lambda: peer.logprobs(padded, first, end), lambda _: COEFFICIENTS)

    torch.testing.assert_close(measured.square_norms.float(), norms, rtol=1e-5, atol=0)
    expected = dict(theirs.named_parameters())
    for name, p in lm.named_parameters():
        error = (p.grad - expected[name].grad).norm() / expected[name].grad.norm()
        assert error < 1e-5, name
