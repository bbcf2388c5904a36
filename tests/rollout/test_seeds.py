"""Every request that vLLM gets has a seed of its own, of run seed, step, prompt and try, on any number of ranks."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from cases import wide
from conftest import POCKET
from test_datamodule import make
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor
from torch._inductor.exc import InductorError
from vllm import SamplingParams
from vllm.v1.sample import sampler

from callbacks.evaluation import HeldOutEvaluation
from oblr.batch.types import Sampling
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.problem import Completion
from oblr.rollout.datamodule import RolloutDataModule
from oblr.rollout.drawing import Progress
from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine
from oblr.run.randomness import derived_seed

PROMPTS, GROUP = 6, 3


@pytest.fixture(scope="module")
def engine():
    engine = VLLMEngine(str(POCKET), "float32", 256)  # twice the size of a block of the prefix cache
    engine.start()
    enqueue = engine._llm.enqueue
    engine.asked = []

    def record(requests, params, **settings):
        engine.asked += zip((tuple(request["prompt_token_ids"]) for request in requests), params, strict=True)
        return enqueue(requests, params, **settings)

    engine._llm.enqueue = record
    yield engine
    engine.close()


class Rank(SimpleNamespace):
    """A run that the data module is in, at a step."""

    def __init__(self, rank, ranks, epoch):
        same = SimpleNamespace(root_device="cpu", reduce=lambda tensor, reduce_op: tensor)
        super().__init__(global_rank=rank, world_size=ranks, current_epoch=epoch, strategy=same)


def step(engine, monkeypatch, epoch, ranks, seed=1):
    """The rollouts of a run's step, and (prompt, sampling parameters) of all requests on the way."""
    engine.asked.clear()
    rollouts = []
    for rank in range(ranks):
        data = make(
            engine="vllm",
            engines={"vllm": lambda: engine},
            prompts_per_step=PROMPTS,
            group_size=GROUP,
            max_new_tokens=16,
            seed=seed,
        )
        data.weights = PolicyModel(load_model(str(POCKET), "float32"), 1.0).weights
        data.greedy = data.started = True
        for step in range(epoch):
            data.progress = Progress(data.drawing.of_step(step, data.progress.position).end)
        monkeypatch.setattr(RolloutDataModule, "run", Rank(rank, 1, epoch))
        data._sync()
        data.reward_pool.start()
        monkeypatch.setattr(RolloutDataModule, "run", Rank(rank, ranks, epoch))
        rollouts += data.next_batch().rollouts
        data.reward_pool.close()
    return [rollout.completion.token_ids for rollout in rollouts], list(engine.asked)


def test_keys_that_read_alike_have_seeds_of_their_own():
    keys = [("rollouts", 1, 1, 12), ("rollouts", 1, 11, 2), ("rollouts", 11, 1, 2), ("rollouts1", 1, 1, 2)]
    assert len({derived_seed(*key) for key in keys}) == len(keys)


@pytest.mark.wide
def test_seeds_are_all_different_and_a_resumed_run_has_the_same(engine, monkeypatch):
    first, asked = step(engine, monkeypatch, epoch=0, ranks=1)
    second, more = step(engine, monkeypatch, epoch=1, ranks=1)
    other, others = step(engine, monkeypatch, epoch=0, ranks=1, seed=2)
    tries = [params.seed for _, params in [*asked, *more, *others]]
    assert len(tries) == 3 * PROMPTS * (GROUP + 1)
    assert len(set(tries)) == len(tries)
    kinds = Counter((params.n, params.temperature) for _, params in asked)
    assert kinds == {(1, 1.0): PROMPTS * GROUP, (1, 0.0): PROMPTS}  # a group, and a greedy one beside it
    assert first not in (second, other)
    again, asked_again = step(engine, monkeypatch, epoch=1, ranks=1)
    assert again == second
    assert [(prompt, params.seed) for prompt, params in asked_again] == [
        (prompt, params.seed) for prompt, params in more
    ]


@pytest.mark.parametrize("ranks", wide(2, 3))
def test_ranks_share_what_one_alone_would_ask_for(engine, monkeypatch, ranks):
    _, alone = step(engine, monkeypatch, epoch=0, ranks=1)
    _, shared = step(engine, monkeypatch, epoch=0, ranks=ranks)
    assert sorted((prompt, params.seed) for prompt, params in shared) == sorted(
        (prompt, params.seed) for prompt, params in alone
    )


@pytest.mark.wide
def test_evaluation_has_seeds_of_its_own(engine, monkeypatch):
    _, training = step(engine, monkeypatch, epoch=0, ranks=1)
    engine.asked.clear()
    data = make(engine="vllm", engines={"vllm": lambda: engine}, max_new_tokens=16)
    data.weights, data.started = PolicyModel(load_model(str(POCKET), "float32"), 1.0).weights, True
    monkeypatch.setattr(RolloutDataModule, "run", Rank(0, 1, 0))
    data.reward_pool.start()
    for rank in range(2):
        trainer = SimpleNamespace(datamodule=data, global_rank=rank, world_size=2)
        HeldOutEvaluation(every=1, seed=1).accuracy(trainer, data.sampling)
    data.reward_pool.close()
    evaluation = {params.seed for _, params in engine.asked}
    assert len(evaluation) == len(data.held_out) * data.sampling.n
    assert not evaluation & {params.seed for _, params in training}


def test_responses_are_those_of_vllms_own_way_and_told_as_they_end(engine):
    """A request for each has the bits of a request for the group, and a list of numbers those of a dict a token."""
    engine.weight_version = 1
    prompts, ends = [list(range(20 + q, 26 + 2 * q)) for q in range(5)], (0, 7)
    sampling, seeds = Sampling(4, 1.0, 24, ends), range(0, 500, 100)
    told = []
    groups = engine.generate(prompts, sampling, seeds, lambda *one: told.append(one))
    engine._llm.reset_prefix_cache()
    settings = {"temperature": 1.0, "max_tokens": 24, "stop_token_ids": list(ends), "ignore_eos": True, "logprobs": 0}
    outputs = engine._llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        [SamplingParams(n=4, seed=seed, detokenize=False, **settings) for seed in seeds],
        use_tqdm=False,
    )
    assert groups == [
        [
            Completion(
                list(one.token_ids),
                [step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True)],
                one.finish_reason == "stop",
            )
            for one in output.outputs
        ]
        for output in outputs
    ]
    assert sorted(told, key=lambda one: one[:2]) == [
        (q, j, one) for q, group in enumerate(groups) for j, one in enumerate(group)
    ]
    lengths = [len(one.token_ids) for *_, one in told]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_nothing_of_an_earlier_call_is_taken_from_the_prefix_cache(engine, monkeypatch):
    """It was rounded in that call's company: a batch would depend on the batches before it."""
    cached, step = [], engine._llm.llm_engine.step

    def noted():
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(engine._llm.llm_engine, "step", noted)
    prompt = list(range(20, 220))
    assert engine._llm.llm_engine.vllm_config.cache_config.block_size < len(prompt)
    engine.weight_version = 1
    for _ in range(2):
        engine.generate([prompt], Sampling(1, 1.0, 4, ()), [1])
    assert cached == [0, 0]


def test_a_machine_without_cpp_compiler_needs_none(engine, monkeypatch):
    """A function of vLLM's sampler is compiled on a CPU; in these tests that is switched off, and here it is not."""
    with dynamo.patch(disable=False), inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
        compiled = torch.compile(sampler.batched_count_greater_than, dynamic=True)
        monkeypatch.setattr(sampler, "batched_count_greater_than", compiled)
        with pytest.raises(InductorError, match="No working C"):
            compiled(torch.ones(3, 5), torch.ones(3, 1))
        monkeypatch.setenv("CXX", "no-such-compiler")
        engine.sync(load_model(str(POCKET), "float32").state_dict().items(), 1)
        ((found,),) = engine.generate([[5, 6, 7]], Sampling(1, 1.0, 4, (0,)), [1])
        assert found.token_ids
    assert ServerEngine(str(POCKET), "float32", 128, "log").environment["TORCHDYNAMO_DISABLE"] == "1"
