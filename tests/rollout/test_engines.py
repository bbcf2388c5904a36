"""All real engines: their log-probabilities are the policy's, before and after new weights."""

import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from cases import wide
from conftest import POCKET, ROOT, adapt

from oblr.batch.packing import pack
from oblr.batch.types import Rollout, Sampling
from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import StaleEngineError
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem
from oblr.record.curves import read_curves
from oblr.rewards.answer import BoxedFormat
from oblr.rewards.math import MathReward
from oblr.rewards.pool import RewardPool
from oblr.rewards.verdicts import Verdict
from oblr.rollout.hf import HFEngine
from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine
from oblr.run.randomness import derived_seed

PARAMS = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}


@pytest.fixture(scope="module")
def problems():
    return list(ReasoningGymProblems("chain_sum", 12, 5, "{expression} =\n", PARAMS))


ENGINES = ["hf-tied", "vllm-tied", *wide("hf-untied", "vllm-untied")]
SERVERS = [pytest.param(name, marks=pytest.mark.servers) for name in ("server-tied", "server-untied")]


@pytest.fixture(scope="module", params=[*ENGINES, *SERVERS])
def setting(request, tmp_path_factory):
    """(engine, its model's folder): the pocket model, as it is shipped or with a head of its own."""
    if request.param == "server-tied":
        yield request.getfixturevalue("pocket_server"), str(POCKET)
        return
    kind, tying = request.param.split("-")
    folder = POCKET
    if tying == "untied":
        folder = tmp_path_factory.mktemp("untied")
        lm = load_model(str(POCKET), "float32")
        lm.config.tie_word_embeddings = False
        lm.lm_head.weight = torch.nn.Parameter(lm.lm_head.weight.detach() + 0.02 * torch.randn(lm.lm_head.weight.shape))
        lm.save_pretrained(folder)
        load_tokenizer(str(POCKET)).save_pretrained(folder)
    log = str(tmp_path_factory.mktemp("server") / "log")
    engine = {
        "hf": lambda: HFEngine(str(folder), "float32"),
        "vllm": lambda: VLLMEngine(str(folder), "float32", 128),
        "server": lambda: ServerEngine(str(folder), "float32", 128, log, piece_mib=0.1),
    }[kind]()
    engine.start()
    yield engine, str(folder)
    engine.close()


def sampling(tokenizer, n=4, temperature=1.0):
    return Sampling(n, temperature, 64, (tokenizer.eos_token_id,))


def seeds_of(prompts, seed):
    return [derived_seed(seed, q) for q in range(len(prompts))]


def largest_gap(model, engine, problems, tokenizer, temperature):
    prompts = [tokenizer.encode(p.prompt) for p in problems]
    groups = engine.generate(prompts, sampling(tokenizer, temperature=temperature), seeds_of(prompts, 1))
    packed = pack(
        [Rollout(p, ids, c, "", 0.0) for p, ids, group in zip(problems, prompts, groups, strict=True) for c in group]
    )
    with torch.no_grad():
        return (model(packed)[0] - packed.behaviour_logprobs).abs().max().item()


@pytest.mark.parametrize("temperature", [0.6, *wide(1.0)])
def test_logprobs_are_the_policys_before_and_after_every_sync(setting, problems, temperature):
    engine, folder = setting
    tokenizer = load_tokenizer(folder)
    model = PolicyModel(load_model(folder, "float32"), temperature)
    assert ("lm_head.weight" in dict(model.weights())) == ("untied" in folder)
    engine.sync(model.weights(), 1)
    assert largest_gap(model, engine, problems, tokenizer, temperature) < 1e-3
    for version in (2, 3):
        torch.manual_seed(version)
        if version == 2:
            for p in model.parameters():
                p.data += 0.03 * torch.randn_like(p)
        else:
            adapt(model.lm)
        assert largest_gap(model, engine, problems, tokenizer, temperature) > 0.1  # the engine is stale
        engine.sync(model.weights(), version)
        assert engine.weight_version == version
        assert largest_gap(model, engine, problems, tokenizer, temperature) < 1e-3


def test_more_prompts_than_a_forward_pass_takes(setting):
    """vLLM would compute a part of a prompt, and fail on a CPU of what it then draws in vain."""
    engine, folder = setting
    model = PolicyModel(load_model(folder, "float32"), 1.0)
    engine.sync(model.weights(), 5)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(1, model.lm.config.vocab_size, (90, 100), generator=generator).tolist()
    asked = sampling(load_tokenizer(folder), n=1)
    groups = engine.generate(prompts, replace(asked, max_new_tokens=4), seeds_of(prompts, 1))
    problem = Problem("", "", "")
    packed = pack([Rollout(problem, ids, one, "", 0.0) for ids, (one,) in zip(prompts, groups, strict=True)])
    with torch.no_grad():
        assert (model(packed)[0] - packed.behaviour_logprobs).abs().max() < 1e-3


@pytest.mark.parametrize("kept", [{"top_k": 1}, *wide({"top_p": 1e-6}, {"min_p": 1.0})], ids=str)
def test_of_the_likeliest_token_alone_a_sample_is_greedy(setting, problems, kept):
    engine, folder = setting
    tokenizer = load_tokenizer(folder)
    engine.sync(PolicyModel(load_model(folder, "float32"), 1.0).weights(), 9)
    prompts = [tokenizer.encode(p.prompt) for p in problems]

    def sampled(temperature, **changes):
        asked = replace(sampling(tokenizer, n=1, temperature=temperature), **changes)
        return [group[0].token_ids for group in engine.generate(prompts, asked, seeds_of(prompts, 1))]

    greedy = sampled(0.0)
    assert sampled(1.0) != greedy
    assert sampled(1.0, **kept) == greedy


def test_completions(setting, problems):
    engine, folder = setting
    tokenizer = load_tokenizer(folder)
    engine.sync(PolicyModel(load_model(folder, "float32"), 1.0).weights(), 4)
    prompts = [tokenizer.encode(p.prompt) for p in problems]
    random_state = torch.get_rng_state()
    first = engine.generate(prompts, sampling(tokenizer), seeds_of(prompts, 3))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert first == engine.generate(prompts, sampling(tokenizer), seeds_of(prompts, 3))
    assert first != engine.generate(prompts, sampling(tokenizer), seeds_of(prompts, 4))
    assert [len(group) for group in first] == [4] * len(prompts)
    for completion in (c for group in first for c in group):
        assert len(completion.token_ids) == len(completion.logprobs) <= 64
        assert completion.finished == (completion.token_ids[-1] == tokenizer.eos_token_id)
        assert tokenizer.eos_token_id not in completion.token_ids[:-1]
    assert {c.finished for group in first for c in group} == {True, False}
    greedy = [engine.generate(prompts, sampling(tokenizer, 1, 0.0), seeds_of(prompts, s)) for s in (1, 2)]
    assert [g[0].token_ids for g in greedy[0]] == [g[0].token_ids for g in greedy[1]]


def test_a_thread_scores_rewards_beside_the_running_engine(setting, problems):
    engine, folder = setting
    tokenizer = load_tokenizer(folder)
    engine.sync(PolicyModel(load_model(folder, "float32"), 1.0).weights(), 4)
    prompts = [tokenizer.encode(p.prompt) for p in problems]
    before = engine.generate(prompts, sampling(tokenizer), seeds_of(prompts, 3))
    surds = [Problem(str(n), "?", rf"2\sqrt{{{n}}}") for n in (2, 3, 5)]
    texts = [r"\boxed{\sqrt{8}}", r"\boxed{\sqrt{8}}", r"\boxed{\sqrt{20}}"]  # which math-verify is asked about
    pool = RewardPool(MathReward(BoxedFormat()), workers=1, timeout=60)
    with ThreadPoolExecutor() as thread:
        verdicts = thread.submit(pool.score, surds, texts, [Completion([1], [0.0], True)] * 3).result()
    pool.close()
    assert verdicts == [Verdict(1.0, "scored"), Verdict(0.0, "scored"), Verdict(1.0, "scored")]
    assert engine.generate(prompts, sampling(tokenizer), seeds_of(prompts, 3)) == before


@pytest.mark.parametrize("temperature", [0.6, *wide(1.0)])
def test_a_seed_for_each_prompt(setting, problems, temperature):
    """Neither company nor order nor the number of tries matters; what is drawn has the policy's probabilities."""
    engine, folder = setting
    tokenizer = load_tokenizer(folder)
    model = PolicyModel(load_model(folder, "float32"), temperature)
    engine.sync(model.weights(), 4)
    prompts, seeds = [tokenizer.encode(p.prompt) for p in problems], [2**62 + 10 * i for i in range(len(problems))]
    random_state = torch.get_rng_state()
    together = engine.generate(prompts, sampling(tokenizer, 4, temperature), seeds)
    assert torch.equal(torch.get_rng_state(), random_state)
    ids = [[completion.token_ids for completion in group] for group in together]
    alone = engine.generate(prompts[3:1:-1], sampling(tokenizer, 2, temperature), seeds[3:1:-1])
    assert [[completion.token_ids for completion in group] for group in alone] == [ids[3][:2], ids[2][:2]]
    shifted = engine.generate(prompts, sampling(tokenizer, 1, temperature), [seed + 1 for seed in seeds])
    assert [group[0].token_ids for group in shifted] == [group[1] for group in ids]  # the second try's
    assert any(group[0] != group[1] for group in ids)
    assert (
        len(
            {
                tuple(one)
                for group in engine.generate(prompts[:1] * 8, sampling(tokenizer, 1), range(8))
                for one in [group[0].token_ids]
            }
        )
        > 1
    )
    packed = pack([Rollout(p, x, c, "", 0.0) for p, x, g in zip(problems, prompts, together, strict=True) for c in g])
    with torch.no_grad():
        assert (model(packed)[0] - packed.behaviour_logprobs).abs().max().item() < 1e-3


def test_a_stale_engine_does_not_generate(setting):
    engine, _ = setting
    version, engine.weight_version = engine.weight_version, None
    with pytest.raises(StaleEngineError, match="has had no weights"):
        engine.generate([[1, 2]], sampling(load_tokenizer(str(POCKET))), [1])
    engine.weight_version = version


def test_a_sync_holds_few_weights_at_a_time(setting):
    engine, folder = setting
    whole = dict(PolicyModel(load_model(folder, "float32"), 1.0).weights())
    alive, most = {}, 0

    def streamed():
        nonlocal most
        for name in whole:
            weight = whole[name].clone()
            alive[name] = weight.nbytes
            weakref.finalize(weight, alive.pop, name)
            most = max(most, sum(alive.values()))
            yield name, weight
            del weight

    engine.sync(streamed(), 5)
    # vLLM keeps what it fuses until that is complete, and the embedding, which it pads, until the end.
    tables = sum(weight.nbytes for name, weight in whole.items() if "embed" in name or "lm_head" in name)
    fused = 2 * whole["model.layers.0.mlp.gate_proj.weight"].nbytes
    norms = 2 * whole["model.norm.weight"].nbytes
    assert most <= tables + fused + norms < 0.3 * sum(weight.nbytes for weight in whole.values())
    assert not alive


class Recorder:
    """Stands for vLLM on a GPU, which is not here: the order of the calls is all that it shows."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *_, **settings: self.calls.append((name, settings))


def test_asleep_between_rollouts_on_a_gpu(monkeypatch):
    engine = VLLMEngine(str(POCKET), "float32", 128)
    engine.gpu, engine._llm, engine.weight_version = True, Recorder(), 1
    engine.sleep()
    engine.sleep()
    assert engine._llm.calls == [("sleep", {"level": 2})]
    assert engine.weight_version is None  # nothing is left of the weights
    engine._llm.calls.clear()
    engine.sync([], 2)
    names = [name for name, _ in engine._llm.calls]
    assert names == ["wake_up", "collective_rpc", "wake_up", "reset_prefix_cache"]
    assert [settings["tags"] for name, settings in engine._llm.calls if name == "wake_up"] == [
        ["weights"],
        ["kv_cache", "scheduling"],
    ]
    assert engine.weight_version == 2


@pytest.mark.wide
@pytest.mark.parametrize(("trainer", "shared_by", "engine"), [("fsdp", 2, "NoticingVLLM"), ("ddp", 1, "VLLMEngine")])
def test_an_engine_a_rank_and_an_engine_for_two(train, tmp_path, monkeypatch, trainer, shared_by, engine):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    result = train(
        *("rollout.engine=vllm", f"rollout.engines.vllm._target_=stale.{engine}"),
        f"rollout.engines.vllm.tensor_parallel_size={shared_by}",
        *(f"trainer={trainer}", "trainer.accelerator=cpu", "trainer.devices=2"),
        *("steps=2", "data.held_out.size=3"),  # shares of different sizes
    )
    assert result.returncode == 0, result.stderr
    assert max(read_curves(tmp_path / "run")["rollout/logprob_gap_max"][1]) < 1e-3
    assert (tmp_path / "run" / "policy" / "model.safetensors").exists()  # gathered after the engine has gone
