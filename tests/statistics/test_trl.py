"""What is said of TRL's own trainers, which compute the same with it and without."""

import json
import os
import subprocess
import sys

import pytest
import torch
from cases import wide
from conftest import ROOT
from living import tensors
from trl_runs import trainer

from oblr.errors import UnmeasuredError
from oblr.statistics.log import read
from oblr.statistics.trl import constants, watch

CASES = {
    "grpo": {},
    "rloo": {"kind": "rloo"},
    "adapters": {"lora": True},
    "accumulated": {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2},
    "penalty": {"beta": 0.1},
    "two updates": {"num_iterations": 2, "loss_type": "grpo"},
}


def end(one):
    one.train()
    return [p.detach().clone() for p in one.model.parameters()]


@pytest.mark.parametrize(("case", "steps"), [("rloo", 3), ("accumulated", 3), *wide(*((case, 20) for case in CASES))])
def test_a_run_ends_with_the_same_bits(case, steps, tmp_path):
    settings = CASES[case] | {"max_steps": steps}
    expected = end(trainer(tmp_path, **settings))
    seen, told = trainer(tmp_path, **settings), []
    watch(seen, tmp_path / "statistics.jsonl", told.append)
    assert all(torch.equal(a, b) for a, b in zip(end(seen), expected, strict=True))
    with (tmp_path / "statistics.jsonl").open() as lines:
        assert list(read(lines)) == told
    assert [record.step for record in told] == list(range(1, steps + 1))
    for record in told:
        assert len(record.responses) == 8
        assert len(record.group_squares) == 2
        assert 0 < record.clipped <= 1


@pytest.mark.parametrize("kind", ["grpo", *wide("rloo")])
def test_no_step_leaves_anything_in_memory(kind, tmp_path):
    one, found = trainer(tmp_path, kind, max_steps=5), []
    watch(one, told=lambda _: found.append(tensors()))
    one.train()
    assert found[2] == found[3] == found[4]


def caught(one):
    """The micro-batches of a step, as the loss is given them, and each response's gradient by autograd alone."""
    batches, compute = [], one.compute_loss

    def loss(model, inputs, *args, **kwargs):
        if model.training:
            batches.append(inputs)
        return compute(model, inputs, *args, **kwargs)

    one.compute_loss = loss
    return batches


@pytest.mark.parametrize("case", ["grpo", "rloo", "adapters", "accumulated", "penalty"])
def test_norms_equal_those_of_one_response_at_a_time(case, tmp_path):
    """Each response's own loss, all others' advantages at 0, and beta at 0 but for the case that has it."""
    one, told, grads = trainer(tmp_path, **CASES[case] | {"max_steps": 1, "learning_rate": 0.0}), [], []
    batches = caught(one)
    watch(one, told=told.append)
    one.train()
    (record,) = told
    model, beta = one.model, CASES[case].get("beta", 0)
    one.current_gradient_accumulation_steps = CASES[case].get("gradient_accumulation_steps", 1)
    for batch in batches:
        for i in range(len(batch["advantages"])):
            model.zero_grad()
            rows = torch.arange(len(batch["advantages"])) == i
            alone = dict(batch)
            if beta:  # the penalty has no advantage: all of a response's loss is in its row
                alone = {
                    name: value[rows] if isinstance(value, torch.Tensor) and value.ndim else value
                    for name, value in batch.items()
                }
            else:
                alone["advantages"] = torch.where(rows, batch["advantages"], 0)
            with one.compute_loss_context_manager():
                loss = one._compute_loss(model, alone)
            loss = loss / one.current_gradient_accumulation_steps if CASES[case].get("kind") == "rloo" else loss
            loss.backward()
            grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
    found = torch.tensor([response.gradient_square for response in record.responses]).double()
    expected = torch.stack(grads).square().sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.max().item() * 1e-3)
    total = torch.stack(grads).sum(0).square().sum().item()
    assert record.gradient_square == pytest.approx(total, rel=1e-4)


def test_columns_of_responses(tmp_path):
    one, told = trainer(tmp_path, max_steps=2, gradient_accumulation_steps=2, per_device_train_batch_size=4), []
    batches = caught(one)
    watch(one, told=told.append)
    one.train()
    rows = [(batch, i) for batch in batches[:2] for i in range(4)]
    for response, (batch, i) in zip(told[0].responses, rows, strict=True):
        assert response.advantage == batch["advantages"][i].item()
        ids = batch["completion_ids"][i][batch["completion_mask"][i].bool()]
        assert response.length == len(ids)
        assert response.text == one.processing_class.decode(ids, skip_special_tokens=True)
        assert 1 / len(ids) <= response.peak_share <= 1 or response.advantage == response.peak_share == 0
        assert response.peak_text == one.processing_class.decode(ids[response.peak])
        assert response.finished == (ids[-1].item() == one.processing_class.eos_token_id)
        assert response.reward == pytest.approx(
            sum(c.isdigit() for c in response.text) / (1 + len(response.text)), abs=1e-6
        )
        assert (response.square_norm is None) == (response.advantage == 0)
        prompts = {r.prompt for r in told[0].responses if r.group == response.group}
        assert prompts == {response.prompt}
    assert told[0].learning_rate == pytest.approx(1e-3)


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_how_likely_responses_were_is_told_and_how_likely_they_are(tmp_path, kind):
    """At the second update of a batch the policy is another one than that which sampled it."""
    one = trainer(tmp_path, kind, max_steps=2, num_iterations=2, per_device_train_batch_size=8)
    told, batches = [], caught(one)
    watch(one, told=told.append)
    one.train()
    first, second = ([(r.logprob, r.log_ratio) for r in record.responses] for record in told)
    old = batches[0].get("old_per_token_logps")
    expected = batches[0]["old_logps"] if old is None else (old * batches[0]["completion_mask"]).sum(1)
    assert [logprob for logprob, _ in first] == pytest.approx(expected.tolist(), abs=1e-4)
    assert [logprob for logprob, _ in second] == pytest.approx(expected.tolist(), abs=1e-4)
    assert all(abs(ratio) < 1e-4 for _, ratio in first)
    assert max(abs(ratio) for _, ratio in second) > 1e-3


def test_without_a_later_update_there_is_no_ratio(tmp_path):
    """The policy that learns is the one that has sampled, and its log-probabilities are the sampler's."""
    one, told = trainer(tmp_path, max_steps=1), []
    watch(one, told=told.append)
    one.train()
    assert all(response.log_ratio is None and response.logprob < 0 for response in told[0].responses)


def test_of_a_loss_of_some_tokens_no_norm_of_the_response_is_told(tmp_path):
    """TRL can leave out tokens that are likely; the slope of these is 0, as is that of padding."""
    norms = []
    for quantile in (1.0, 0.5):
        one, told = trainer(tmp_path, max_steps=1, top_entropy_quantile=quantile), []
        watch(one, told=told.append)
        one.train()
        norms.append([response.square_norm for response in told[0].responses])
    assert any(a is not None and b is None for a, b in zip(*norms, strict=True))
    assert all(b is None or b == pytest.approx(a) for a, b in zip(*norms, strict=True))


def test_a_response_that_nobody_scores_has_no_reward(tmp_path):
    def odd_ones(completions, **_):
        return [float(place) if place % 2 else None for place in range(len(completions))]

    one, told = trainer(tmp_path, max_steps=1, reward=odd_ones, shuffle_dataset=False), []
    watch(one, told=told.append)
    one.train()
    known = sorted(response.reward for response in told[0].responses if response.reward is not None)
    assert known == [1, 3, 5, 7]
    assert all(response.advantage == 0 for response in told[0].responses if response.reward is None)


def test_a_prompt_that_is_drawn_twice_has_two_groups(tmp_path):
    one, told = trainer(tmp_path, max_steps=1), []
    one.train_dataset = one.train_dataset.select([0] * 8)
    watch(one, told=told.append)
    one.train()
    assert len({response.prompt for response in told[0].responses}) == 1
    assert len(told[0].group_squares) == 2


def test_a_run_that_goes_on_counts_its_steps_as_the_trainer_does(tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, max_steps=2, **saved).train()
    one, told = trainer(tmp_path, max_steps=3, **saved), []
    watch(one, told=told.append)
    one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [record.step for record in told] == [3]


def test_what_cannot_be_written_or_is_watched_already_is_known_at_once(tmp_path):
    one = trainer(tmp_path)
    with pytest.raises(IsADirectoryError):
        watch(one, tmp_path)
    watch(one, tmp_path / "not yet there" / "statistics.jsonl")
    assert (tmp_path / "not yet there" / "statistics.jsonl").is_file()
    with pytest.raises(UnmeasuredError, match="watched already"):
        watch(one)


@pytest.mark.wide
def test_two_ranks_end_with_the_same_bits_and_see_what_one_does(tmp_path):
    """A prompt's responses are spread over the ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    run = [*command, str(ROOT / "tests/helpers/trl_runs.py"), str(tmp_path)]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "alike.json").read_text()) == {"alike": True, "ranks": 2}
    with (tmp_path / "statistics.jsonl").open() as lines:
        records = list(read(lines))
    assert [len(record.responses) for record in records] == [16] * 3
    assert [len(record.group_squares) for record in records] == [4] * 3
    for rank in range(2):  # a step that one of them refuses, none waits for
        assert "reward has 3 entries, and 2 sequences" in (tmp_path / f"refused-{rank}.txt").read_text()


def test_what_cannot_be_measured_ends_the_run_by_name(tmp_path):
    one = trainer(tmp_path, max_steps=1)
    one.model.model.layers[0].mlp.up_proj.weight.register_hook(lambda gradient: 2 * gradient)
    watch(one)
    with pytest.raises(UnmeasuredError, match="up_proj"):
        one.train()
    one = trainer(tmp_path, max_steps=1, entropy_coef=0.1)  # the entropy's gradient reaches the head's weight
    watch(one)
    with pytest.raises(UnmeasuredError, match=r"embed_tokens|lm_head"):
        one.train()


def test_the_coefficient_that_tokens_have_in_common():
    slopes = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.4, 0.0], [0.0, 0.0, 0.0], [-2.0, -2.0, -2.0]])
    there = torch.arange(3) < torch.tensor([[2], [2], [3], [3]])
    assert str(constants(slopes, there)) == "[0.5, nan, 0.0, -2.0]"
    assert str(constants(slopes, torch.ones(4, 3, dtype=torch.bool))) == "[nan, nan, 0.0, -2.0]"
