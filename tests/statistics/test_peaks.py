import torch

from oblr.statistics.peaks import peaks


def test_slopes_of_the_tokens_own_logits_are_autograds():
    """Of a loss that no coefficient of a response describes."""
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 7, requires_grad=True)
    targets, there = torch.randint(7, (3, 5)), torch.arange(5) < torch.tensor([[5], [3], [1]])
    logps = logits.log_softmax(-1).gather(2, targets[..., None]).squeeze(2)
    logps.retain_grad()
    (logps.exp() * torch.randn(3, 5) * there).sum().backward()
    own = logits.grad.gather(2, targets[..., None]).squeeze(2).square()
    found = peaks(logps.detach(), logps.grad)
    assert found.places.tolist() == own.argmax(1).tolist()
    torch.testing.assert_close(found.shares, own.amax(1) / own.sum(1))


def test_a_response_that_the_loss_does_not_depend_on_has_no_share():
    assert peaks(torch.full((1, 4), -1.0), torch.zeros(1, 4)).shares.tolist() == [0.0]
