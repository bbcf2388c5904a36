"""Steps of one prompt, one response or one of each: every baseline trains as its docstring says, or is refused."""

import pytest
import torch
from baseline_steps import baseline, make
from baselines.test_registry import LOOPS
from conftest import ROOT

from oblr.commands.checks import check_batch
from oblr.errors import SettingError
from oblr.schedules.constant import ConstantSchedule

NAMES = sorted(path.stem for path in (ROOT / "conf" / "baseline").glob("*.yaml"))
KEYS = list(dict.fromkeys([*((name,) for name in NAMES), *LOOPS, ("batch_mean", ("normalise", True))]))
#: Those that have an advantage to give to a single response a prompt, or in the step.
ALONE = {("none",): 1, ("remax",): 1, ("value",): 1, ("batch_mean",): 1, ("batch_mean", ("normalise", True)): 2}


def step(prompts, size, seed):
    """Unequal rewards, none of them 0; a greedy response has 0."""
    draw = torch.Generator().manual_seed(seed)
    rewards, weights = 0.1 + torch.rand(2, prompts, size, generator=draw)
    lengths = torch.randint(1, 5, (prompts, size), generator=draw)
    n = int(lengths.sum())
    energy, hidden = 0.1 + torch.rand(n, generator=draw).double(), torch.randn(n, 3, generator=draw)
    return make(rewards, lengths, weights.double(), torch.zeros(prompts), energy, hidden)


@pytest.mark.parametrize(("prompts", "size"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3)])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key)))
def test_it_trains_or_is_refused(key, prompts, size):
    chosen = baseline(key[0], **dict(key[1:]))
    enough = prompts * size >= ALONE[key] if key in ALONE else size >= 2
    state = repr(chosen.state_dict())
    if not enough:
        with pytest.raises(SettingError, match=r"^(rollout\.group_size|baseline): .*\n?$"):
            check_batch(chosen, ConstantSchedule(1.0), prompts, size, 1, 1)
        return
    check_batch(chosen, ConstantSchedule(1.0), prompts, size, 1, 1)
    assert repr(chosen.state_dict()) == state
    for seed in range(3):
        groups = step(prompts, size, seed)
        assert chosen.live(groups).all()
        advantages = chosen(groups)
        assert advantages.isfinite().all()
        assert (advantages.abs() > 1e-4).any()


def test_a_single_response_has_nothing_to_be_compared_with():
    groups = step(1, 1, 0)
    assert torch.equal(baseline("batch_mean")(groups), groups.rewards)  # b = 0


def test_a_baseline_that_nobody_has_seen_is_tried_too():
    class Mine(type(baseline("group_mean"))):
        """Of its own group, in a way that no attribute tells."""

    with pytest.raises(SettingError, match="Mine compares responses"):
        check_batch(Mine(), ConstantSchedule(1.0), 4, 1, 1, 1)
