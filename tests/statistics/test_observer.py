"""What an observer says of anybody's backward pass, beside autograd on one sequence at a time."""

import math

import pytest
import torch
import torch.distributed as dist
from conftest import adapt, tiny_model
from living import tensors
from torch import nn
from torch.distributed.fsdp import fully_shard

from oblr.errors import UnmeasuredError
from oblr.statistics.observer import GradientStatistics

ROWS, LENGTH, GROUP = 8, 20, 4
#: Where rows are padded: on the left, on the right, not at all.
MASK = torch.ones(ROWS, LENGTH, dtype=torch.long)
MASK[1, :7], MASK[2, :3], MASK[5, 12:], MASK[6, 19:] = 0, 0, 0, 0
COEFFICIENTS = torch.tensor([0.5, -1.0, 2.0, 0.1, -0.3, 0.7, 1.1, -0.2]) / ROWS


def tokens(lm, seed=0):
    return torch.randint(5, lm.config.vocab_size, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


def loss_of(lm, ids, mask, coefficients):
    """A sum over rows of their coefficients times the log-probability of their tokens."""
    logits = lm(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
    logprobs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return (coefficients[:, None] * logprobs * mask[:, 1:] * mask[:, :-1]).sum()


def backward(lm, ids, micro_batches=1, coefficients=COEFFICIENTS):
    for rows in torch.arange(len(ids)).chunk(micro_batches):
        loss_of(lm, ids[rows], MASK[rows], coefficients[rows]).backward()


def gradients(lm):
    return torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None]).double()


def each_alone(lm, ids):
    """g_i of every row, float64 [ROWS, parameters]."""
    found = []
    for i in range(ROWS):
        lm.zero_grad()
        loss_of(lm, ids[i : i + 1], MASK[i : i + 1], COEFFICIENTS[i : i + 1]).backward()
        found.append(gradients(lm))
    lm.zero_grad()
    return torch.stack(found)


def column(record, name):
    return torch.tensor([getattr(response, name) for response in record.responses], dtype=torch.float64)


def check(record, alone, groups=None):
    torch.testing.assert_close(column(record, "gradient_square"), alone.square().sum(1), rtol=1e-5, atol=0)
    total = alone.sum(0)
    torch.testing.assert_close(record.gradient_square, total.square().sum().item(), rtol=1e-5, atol=0)
    if groups is not None:
        joint = torch.stack([len(groups) * alone[members].sum(0) for members in groups]).square().sum(1)
        torch.testing.assert_close(torch.tensor(record.group_squares).double(), joint, rtol=1e-5, atol=0)


HALVES = [slice(0, 4), slice(4, 8)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_norms_equal_those_of_one_sequence_at_a_time(tied, family, micro_batches):
    lm = tiny_model(tied, family)
    ids = tokens(lm)
    alone = each_alone(lm, ids)
    with GradientStatistics(lm) as statistics:
        backward(lm, ids, micro_batches)
        record = statistics.step([0] * 4 + [1] * 4, coefficients=COEFFICIENTS)
    check(record, alone)
    torch.testing.assert_close(
        column(record, "square_norm"), alone.square().sum(1) / COEFFICIENTS.double().square(), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_norms_of_complete_groups(tied, micro_batches):
    lm = tiny_model(tied)
    ids = tokens(lm)
    alone = each_alone(lm, ids)
    with GradientStatistics(lm, group_size=GROUP) as statistics:
        backward(lm, ids, micro_batches)
        record = statistics.step()
    check(record, alone, HALVES)
    assert not record.estimated
    with GradientStatistics(lm, group_size=3), pytest.raises(UnmeasuredError, match="no complete groups of 3"):
        backward(lm, ids)


@pytest.mark.parametrize("again", [False, True])
def test_checkpointed_blocks(again):
    """Activations are computed again in the backward pass, by a graph of its own or by the old one."""
    lm = tiny_model(True)
    ids = tokens(lm)
    alone = each_alone(lm, ids)
    lm.gradient_checkpointing_enable({"use_reentrant": again})
    lm.enable_input_require_grads()
    with GradientStatistics(lm) as statistics:
        backward(lm, ids, 2)
        check(statistics.step(), alone)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("group_size", [None, GROUP])
def test_no_step_leaves_anything_in_memory(tied, group_size):
    lm, found = tiny_model(tied), []
    with GradientStatistics(lm, group_size) as statistics:
        for _ in range(4):
            backward(lm, tokens(lm), 2)
            statistics.step()
            lm.zero_grad()
            found.append(tensors())
    assert found[1] == found[2] == found[3]


def test_two_forward_passes_before_a_backward_pass():
    lm = tiny_model(True)
    ids = tokens(lm)
    alone = each_alone(lm, ids)
    with GradientStatistics(lm) as statistics:
        sum(loss_of(lm, ids[rows], MASK[rows], COEFFICIENTS[rows]) for rows in HALVES).backward()
        check(statistics.step(), alone)
        lm.zero_grad()
        lm.gradient_checkpointing_enable({"use_reentrant": True})
        lm.enable_input_require_grads()
        with pytest.raises(UnmeasuredError, match="use_reentrant=False"):  # nobody can tell the two apart
            sum(loss_of(lm, ids[rows], MASK[rows], COEFFICIENTS[rows]) for rows in HALVES).backward()


@pytest.mark.parametrize("without", [0, 1])
def test_a_layer_that_one_pass_leaves_out(without):
    """As layers that are dropped at random do."""
    lm = tiny_model(True)
    ids, mlp, left_out = tokens(lm), lm.model.layers[0].mlp, False
    forward = mlp.forward
    mlp.forward = lambda x: torch.zeros_like(x) if left_out else forward(x)
    alone = []
    for i in range(ROWS):
        left_out = i // 4 == without
        loss_of(lm, ids[i : i + 1], MASK[i : i + 1], COEFFICIENTS[i : i + 1]).backward()
        alone.append(
            torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in lm.parameters()])
        )
        lm.zero_grad()
    with GradientStatistics(lm, group_size=GROUP) as statistics:
        for number, rows in enumerate(HALVES):
            left_out = number == without
            loss_of(lm, ids[rows], MASK[rows], COEFFICIENTS[rows]).backward()
        check(statistics.step(), torch.stack(alone).double(), HALVES)


def test_adapters_alone_are_trained():
    lm = tiny_model(True)
    adapt(lm)
    ids = tokens(lm)
    alone = each_alone(lm, ids)
    with GradientStatistics(lm, group_size=GROUP) as statistics:
        backward(lm, ids, 2)
        check(statistics.step(), alone, HALVES)


def packed_pass(lm, ids, lengths, coefficients):
    """Sequences one behind the other in one row, which do not see each other."""
    rows = [ids[i, :n] for i, n in enumerate(lengths)]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    owners = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None]
    packed = torch.cat(rows)[None]
    mask = (owners[0][:, None] == owners[0]).tril()[None, None]
    logits = lm(input_ids=packed, position_ids=positions, attention_mask=mask).logits[0, :-1].float()
    logprobs = logits.log_softmax(-1).gather(1, packed[0, 1:, None])[:, 0]
    inside = owners[0, 1:] == owners[0, :-1]
    return owners, (coefficients[owners[0, 1:]] * logprobs * inside).sum()


def test_packed_rows():
    lm, lengths = tiny_model(True), [5, 17, 2, 11]
    ids = tokens(lm)
    alone = []
    for i, n in enumerate(lengths):
        lm.zero_grad()
        packed_pass(lm, ids[i : i + 1], [n], COEFFICIENTS[i : i + 1])[1].backward()
        alone.append(gradients(lm))
    lm.zero_grad()
    with GradientStatistics(lm) as statistics:
        statistics.sequences(torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None])
        packed_pass(lm, ids, lengths, COEFFICIENTS)[1].backward()
        check(statistics.step(), torch.stack(alone))


def test_what_the_loop_computes_stays_the_same_to_the_bit():
    """Two steps of AdamW with dropout of attention, whose random numbers nobody may draw from."""
    ends = []
    for watched in (False, True):
        lm = tiny_model(True, attention_dropout=0)
        lm.config.attention_dropout = 0.2
        for module in lm.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.2
        optimizer, statistics = torch.optim.AdamW(lm.parameters(), lr=1e-3), None
        if watched:
            statistics = GradientStatistics(lm)
        torch.manual_seed(5)
        for step in range(2):
            optimizer.zero_grad()
            backward(lm, tokens(lm, step), 2)
            if statistics is not None:
                statistics.step()
            optimizer.step()
        ends.append([p.detach().clone() for p in lm.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_clipped_gradient_is_told_from_what_it_was():
    lm = tiny_model(True)
    ids = tokens(lm)
    alone = each_alone(lm, ids)
    with GradientStatistics(lm) as statistics:
        backward(lm, ids)
        before = nn.utils.clip_grad_norm_(lm.parameters(), 0.5).item()
        record = statistics.step()
    check(record, alone)
    assert record.clipped == pytest.approx(0.5 / before, rel=1e-4)


def test_estimates_are_without_bias():
    """Over projections: of norms of groups, of alignments, and of the turn from one step to the next."""
    lm = tiny_model(False)
    first, second = tokens(lm), tokens(lm, 1)
    before = each_alone(lm, first).sum(0)
    alone = each_alone(lm, second)
    total = alone.sum(0)
    cosines = alone @ total / (alone.norm(dim=1) * total.norm())
    groups = torch.stack([2 * alone[members].sum(0) for members in HALVES]).square().sum(1)
    found = []
    for seed in range(30):
        with GradientStatistics(lm, seed=seed) as statistics:
            backward(lm, first)
            statistics.step()
            lm.zero_grad()
            backward(lm, second)
            record = statistics.step([0] * 4 + [1] * 4)
            lm.zero_grad()
        assert record.estimated
        found.append(torch.tensor([*record.group_squares, *column(record, "alignment"), record.turn]))
    expected = torch.cat([groups, cosines, (before @ total / (before.norm() * total.norm()))[None]])
    draws = torch.stack(found).double()
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected).abs() < 4 * error).all()
    assert (draws.std(0)[2:] < 0.2).all()  # of a cosine, by this small model's few layers


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_whether_an_update_would_still_lead_down_where_it_has_ended(optimizer):
    """Of whatever step the optimizer made, with as many projections as there are numbers."""
    lm = tiny_model(False)
    first, second = tokens(lm), tokens(lm, 1)
    made, where = optimizer(lm.parameters(), lr=1e-3), [p.detach().clone() for p in lm.parameters()]
    with GradientStatistics(lm, sketch=4096) as statistics:
        backward(lm, first)
        assert statistics.step().onward is None  # nothing has moved yet
        made.step()
        made.zero_grad()
        backward(lm, second)
        record = statistics.step()
    moved = torch.cat([(p - before).flatten() for p, before in zip(lm.parameters(), where, strict=True)]).double()
    whole = gradients(lm)
    assert record.onward == pytest.approx((-moved @ whole / moved.norm() / whole.norm()).item(), abs=1e-3)
    assert (record.onward == pytest.approx(record.turn, abs=1e-3)) is (optimizer is torch.optim.SGD)
    with GradientStatistics(lm) as statistics:  # where nobody moves anything
        for ids in (first, second):
            lm.zero_grad()
            backward(lm, ids)
            still = statistics.step()
    assert still.onward is None
    assert still.turn is not None


def hooked(lm):
    lm.model.layers[0].mlp.up_proj.weight.register_hook(lambda g: 1.1 * g)


def left_over(lm):
    lm.model.layers[1].mlp.down_proj.weight.grad = torch.ones_like(lm.model.layers[1].mlp.down_proj.weight)


def used_beside(lm):
    """The weight is used, and the layer not called, as fused kernels do."""
    layer = lm.lm_head

    def forward(*args, **kwargs):
        hidden = lm.model(*args, **kwargs).last_hidden_state
        return type("Output", (), {"logits": hidden @ layer.weight.mT})

    lm.forward = forward


def penalised(lm):
    lm.model.layers[0].mlp.up_proj.weight.square().sum().backward()


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [(hooked, "up_proj"), (left_over, "down_proj"), (penalised, "up_proj"), (used_beside, "lm_head")],
)
def test_a_gradient_that_is_not_the_sum_of_the_sequences_is_refused_by_name(fault, blamed):
    lm = tiny_model(False)
    with GradientStatistics(lm) as statistics:
        fault(lm)
        backward(lm, tokens(lm))
        with pytest.raises(UnmeasuredError, match=f"{blamed}.*is not the sum"):
            statistics.step()


class Odd(nn.Module):
    """A layer that nobody knows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight.prod()


def test_what_cannot_be_measured_is_refused_before_the_first_step():
    lm = tiny_model(False)
    lm.model.layers[0].mlp.act_fn = Odd()
    with pytest.raises(UnmeasuredError, match=r"act_fn' \(Odd\) owns trained parameters"):
        GradientStatistics(lm)
    shared = tiny_model(False)
    shared.model.layers[1].mlp.up_proj.weight = shared.model.layers[0].mlp.up_proj.weight
    with pytest.raises(UnmeasuredError, match=r"layers\.0\.mlp\.up_proj' and '.*layers\.1\.mlp\.up_proj' share"):
        GradientStatistics(shared)
    compiled = tiny_model(False)
    compiled.compile()
    with pytest.raises(UnmeasuredError, match="a compiled model"):
        GradientStatistics(compiled)
    with pytest.raises(UnmeasuredError, match=r"^Linear is no causal language model of transformers \(give one\)$"):
        GradientStatistics(nn.Linear(2, 2))


def test_a_layer_that_is_given_several_rows_a_token_is_refused():
    """A product within each head of attention, whose rows are those of heads as well."""
    lm = tiny_model(False)
    attention = lm.model.layers[0].self_attn
    attention.q_norm = nn.Linear(attention.head_dim, attention.head_dim)
    with GradientStatistics(lm), pytest.raises(UnmeasuredError, match=r"q_norm' \(Linear\) is given .*: not one row"):
        backward(lm, tokens(lm))


def test_shards_are_refused():
    """Their layers have other parameters while they compute."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        lm = fully_shard(tiny_model(False), mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        with pytest.raises(UnmeasuredError, match="the parameters are shards"):
            GradientStatistics(lm)
    finally:
        dist.destroy_process_group()


def test_what_is_given_in_wrong_numbers_is_refused():
    lm = tiny_model(False)
    with GradientStatistics(lm) as statistics:
        with pytest.raises(UnmeasuredError, match="no backward pass"):
            statistics.step()
        backward(lm, tokens(lm))
        with pytest.raises(UnmeasuredError, match="reward has 3 entries, and 8 sequences"):
            statistics.step(reward=[0, 1, 0])
    with GradientStatistics(lm, group_size=GROUP) as statistics:
        backward(lm, tokens(lm))
        with pytest.raises(UnmeasuredError, match="give one of the two"):
            statistics.step([0] * ROWS)
    with GradientStatistics(lm), pytest.raises(UnmeasuredError, match="embeddings in place of tokens"):
        lm(inputs_embeds=torch.randn(1, 3, lm.config.hidden_size)).logits.sum().backward()


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_near(autocast):
    """Its rounding is not taken for a part of the gradient that was not seen."""
    lm = tiny_model(True)
    ids = tokens(lm)
    alone = each_alone(lm, ids)
    lm = lm if autocast else lm.bfloat16()
    with GradientStatistics(lm) as statistics, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = loss_of(lm, ids, MASK, COEFFICIENTS)
        loss.backward()
        record = statistics.step()
    torch.testing.assert_close(column(record, "gradient_square"), alone.square().sum(1), rtol=0.1, atol=0)


def test_a_gradient_that_is_no_number_is_refused_with_who_made_it():
    """As near as the forward pass that they were in."""
    lm = tiny_model(True)
    coefficients = COEFFICIENTS.clone()
    coefficients[5] = math.nan
    with GradientStatistics(lm) as statistics:
        backward(lm, tokens(lm), 2, coefficients)
        with pytest.raises(UnmeasuredError, match=r"no number, .* of the sequences \[4, 5, 6, 7\]"):
            statistics.step()


def test_products_in_tensorfloat32_are_not_taken_for_something_unseen(monkeypatch):
    """A CPU has none: their rounding is put into the gradient."""
    lm = tiny_model(True)
    with GradientStatistics(lm) as statistics:
        for high in (False, True):
            lm.zero_grad()
            backward(lm, tokens(lm))
            for p in lm.parameters():
                p.grad *= 1 + 2**-9 * torch.randn_like(p)
            monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda high=high: "high" if high else "highest")
            if high:
                statistics.step()
            else:
                with pytest.raises(UnmeasuredError, match="is not the sum"):
                    statistics.step()


def test_sequences_of_a_step_without_gradient_are_there():
    """As responses of a group of equal rewards: their part is 0, and says nothing of their norm."""
    lm = tiny_model(True)
    coefficients = COEFFICIENTS.clone()
    coefficients[2:4] = 0
    with GradientStatistics(lm) as statistics:
        backward(lm, tokens(lm), coefficients=coefficients)
        record = statistics.step(coefficients=coefficients)
    assert [response.gradient_square for response in record.responses[2:4]] == [0, 0]
    assert [response.square_norm for response in record.responses[2:4]] == [None, None]
    assert record.responses[2].alignment is None
    assert record.responses[0].square_norm is not None
