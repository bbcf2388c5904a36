import random
import threading

import pytest
import torch
from conftest import make_rollouts, tiny_model

from oblr.batch.packing import pack, partition
from oblr.batch.segments import Segments, cut
from oblr.policy.model import PolicyModel

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
    model, rollouts = PolicyModel(tiny_model(tied=True), 1.0), make_rollouts(LENGTHS)
    packed = pack(rollouts)
    together = model(packed)[0]
    for i, rollout in enumerate(rollouts):
        alone = model(pack([rollout]))[0]
        torch.testing.assert_close(together[packed.target_segments.ids == i], alone, rtol=1e-5, atol=1e-5)


def test_segments():
    segments = Segments(torch.tensor([1, -1, 0, 1, 1]), 3)
    x = torch.arange(1.0, 6)[:, None]
    gathered = segments.gather(x)
    for bucket, rows in zip(segments.buckets, gathered, strict=True):
        for member, row in zip(bucket.members, rows.squeeze(-1).tolist(), strict=True):
            assert [value for value in row if value] == [[3], [1, 4, 5], []][member]
    assert segments.ungather([rows.sum(1) for rows in gathered]).flatten().tolist() == [3, 10, 0]
    assert segments.sum(x).flatten().tolist() == [3, 10, 0]
    merged = Segments(torch.tensor([1, -1, 0, 3, 1]), 4).merge(2)
    assert (merged.ids.tolist(), merged.count) == ([0, -1, 0, 1, 0], 2)


def test_rows_are_short_where_sequences_are_many():
    """Attention costs a row's length for every token."""
    rng = random.Random(0)
    packed = pack(make_rollouts([rng.randint(5, 60) for _ in range(128)]))
    assert packed.input_ids.shape[1] <= 100


def plans(sizes, live, budget):
    """The plans of several ranks, each in a thread of its own; ``agree`` blocks until all ranks call it."""
    ranks = len(sizes)
    barrier, counts, results = threading.Barrier(ranks, timeout=120), [[]] * ranks, [None] * ranks

    def run(rank):
        def agree(own):
            counts[rank] = own
            barrier.wait()
            assert len({len(other) for other in counts}) == 1
            most = [max(column) for column in zip(*counts, strict=True)]
            barrier.wait()
            return most

        results[rank] = partition(sizes[rank], live[rank], budget, agree)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("seed", range(40))
def test_ranks_plan_the_same_passes_and_leave_no_live_group_out(seed):
    rng = random.Random(seed)
    ranks, n_groups, group_size, budget = rng.randint(1, 4), rng.randint(1, 9), rng.randint(2, 6), 100
    sizes = [
        [[rng.randint(1, rng.choice((10, 90))) for _ in range(group_size)] for _ in range(n_groups)]
        for _ in range(ranks)
    ]
    alive = rng.choice((0, 0.3, 1))
    live = [[rng.random() < alive for _ in range(n_groups)] for _ in range(ranks)]
    results = plans(sizes, live, budget)
    assert len({tuple(n_parts for _, n_parts in result) for result in results}) == 1
    for own_sizes, own_live, result in zip(sizes, live, results, strict=True):
        taken = [q for groups, _ in result for q in groups]
        assert len(taken) == len(set(taken))
        assert {q for q in range(n_groups) if own_live[q]} <= set(taken)
        for groups, n_parts in result:
            assert groups
            assert len(groups) == 1 or (n_parts == 1 and sum(sum(own_sizes[q]) for q in groups) <= budget)
            if ranks == 1:
                parts = cut(own_sizes[groups[0]], n_parts)
                assert n_parts == 1 or n_parts == group_size or max(map(sum, parts)) <= budget
