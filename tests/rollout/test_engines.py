"""Both real engines: their log-probabilities are the policy's, before and after new weights."""

import pytest
import torch
from conftest import POCKET

from oblr.data.procedural import ReasoningGymProblems
from oblr.model import TokenScorer, load_model, load_tokenizer
from oblr.packing import pack
from oblr.rollout.hf import HFEngine
from oblr.rollout.vllm import VLLMEngine
from oblr.types import Rollout, Sampling

PARAMS = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}


@pytest.fixture(scope="module")
def problems():
    return list(ReasoningGymProblems("chain_sum", 12, 5, "{expression} =\n", PARAMS))


@pytest.fixture(scope="module", params=["hf-tied", "hf-untied", "vllm-tied", "vllm-untied"])
def setting(request, tmp_path_factory):
    """(engine, its model's folder): the pocket model, as it is shipped or with a head of its own."""
    kind, tying = request.param.split("-")
    folder = POCKET
    if tying == "untied":
        folder = tmp_path_factory.mktemp("untied")
        lm = load_model(str(POCKET), "float32")
        lm.config.tie_word_embeddings = False
        lm.lm_head.weight = torch.nn.Parameter(lm.lm_head.weight.detach() + 0.02 * torch.randn(lm.lm_head.weight.shape))
        lm.save_pretrained(folder)
        load_tokenizer(str(POCKET)).save_pretrained(folder)
    engine = HFEngine(str(folder), "float32") if kind == "hf" else VLLMEngine(str(folder), "float32", 128)
    engine.start()
    yield engine, str(folder)
    engine.close()


def sampling(tokenizer, n=4, temperature=1.0):
    return Sampling(n, temperature, 64, (tokenizer.eos_token_id,))


def largest_gap(scorer, engine, problems, tokenizer, temperature):
    prompts = [tokenizer.encode(p.prompt) for p in problems]
    groups = engine.generate(prompts, sampling(tokenizer, temperature=temperature), seed=1)
    packed = pack(
        [Rollout(p, ids, c, "", 0.0) for p, ids, group in zip(problems, prompts, groups, strict=True) for c in group]
    )
    with torch.no_grad():
        return (scorer(packed)[0] - packed.behaviour_logprobs).abs().max().item()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_policys_before_and_after_every_sync(setting, problems, temperature):
    engine, folder = setting
    tokenizer = load_tokenizer(folder)
    scorer = TokenScorer(load_model(folder, "float32"), temperature)
    assert ("lm_head.weight" in dict(scorer.weights())) == ("untied" in folder)
    engine.sync(scorer.weights(), 1)
    assert largest_gap(scorer, engine, problems, tokenizer, temperature) < 1e-3
    for version in (2, 3):
        torch.manual_seed(version)
        for p in scorer.parameters():
            p.data += 0.03 * torch.randn_like(p)
        assert largest_gap(scorer, engine, problems, tokenizer, temperature) > 0.1  # the engine is stale
        engine.sync(scorer.weights(), version)
        assert engine.weight_version == version
        assert largest_gap(scorer, engine, problems, tokenizer, temperature) < 1e-3


def test_completions(setting, problems):
    engine, folder = setting
    tokenizer = load_tokenizer(folder)
    engine.sync(TokenScorer(load_model(folder, "float32"), 1.0).weights(), 4)
    prompts = [tokenizer.encode(p.prompt) for p in problems]
    random_state = torch.get_rng_state()
    first = engine.generate(prompts, sampling(tokenizer), seed=3)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert first == engine.generate(prompts, sampling(tokenizer), seed=3)
    assert first != engine.generate(prompts, sampling(tokenizer), seed=4)
    assert [len(group) for group in first] == [4] * len(prompts)
    for completion in (c for group in first for c in group):
        assert len(completion.token_ids) == len(completion.logprobs) <= 64
        assert completion.finished == (completion.token_ids[-1] == tokenizer.eos_token_id)
        assert tokenizer.eos_token_id not in completion.token_ids[:-1]
    assert {c.finished for group in first for c in group} == {True, False}
    greedy = [engine.generate(prompts, sampling(tokenizer, 1, 0.0), seed=s) for s in (1, 2)]
    assert [g[0].token_ids for g in greedy[0]] == [g[0].token_ids for g in greedy[1]]
