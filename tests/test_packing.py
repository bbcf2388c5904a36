import random

import pytest
import torch
from conftest import make_rollouts, tiny_model

from oblr.model import TokenScorer
from oblr.packing import Segments, pack

LENGTHS = (1, 5, 17, 3, 40, 8, 2, 1)


def test_every_token_is_there_once_and_in_order():
    rollouts = make_rollouts(LENGTHS)
    packed = pack(rollouts)
    flat, positions = packed.input_ids.flatten(), packed.position_ids.flatten()
    for i, rollout in enumerate(rollouts):
        mine = packed.segments.ids == i
        assert flat[mine].tolist() == rollout.prompt_ids + rollout.completion.token_ids
        assert positions[mine].tolist() == list(range(rollout.n_tokens))
        target = packed.target_segments.ids == i
        assert packed.targets[target].tolist() == rollout.completion.token_ids
        torch.testing.assert_close(packed.behaviour_logprobs[target], torch.tensor(rollout.completion.logprobs))
        assert flat[packed.predictors[target] + 1].tolist() == rollout.completion.token_ids
    assert packed.input_ids.shape[0] < len(rollouts)  # some rows hold several


@pytest.mark.parametrize("seed", range(20))
def test_at_most_two_percent_is_padding(seed):
    rng = random.Random(seed)
    packed = pack(
        make_rollouts([rng.randint(1, rng.choice((5, 50, 500))) for _ in range(rng.randint(1, 200))], seed=seed)
    )
    assert (packed.segments.ids < 0).float().mean() <= 0.02


def test_attention_never_crosses_sequences():
    scorer, rollouts = TokenScorer(tiny_model(tied=True), 1.0), make_rollouts(LENGTHS)
    packed = pack(rollouts)
    together = scorer(packed)[0]
    for i, rollout in enumerate(rollouts):
        alone = scorer(pack([rollout]))[0]
        torch.testing.assert_close(together[packed.target_segments.ids == i], alone, rtol=1e-5, atol=1e-5)


def test_segments():
    segments = Segments(torch.tensor([1, -1, 0, 1, 1]), 3)
    x = torch.arange(1.0, 6)[:, None]
    for (members, _), rows in zip(segments.buckets, segments.gather(x), strict=True):
        for member, row in zip(members.tolist(), rows.squeeze(-1).tolist(), strict=True):
            assert [value for value in row if value] == [[3], [1, 4, 5], []][member]
    assert segments.sum(x).flatten().tolist() == [3, 10, 0]
    merged = Segments(torch.tensor([1, -1, 0, 3, 1]), 4).merge(2)
    assert (merged.ids.tolist(), merged.count) == ([0, -1, 0, 1, 0], 2)
