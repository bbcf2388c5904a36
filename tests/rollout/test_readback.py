"""Weights that are not what was sent are found out, however little they differ; the real engines are asked."""

import itertools

import pytest
import torch
from cases import wide
from conftest import POCKET
from test_engines import largest_gap, problems, sampling, seeds_of  # noqa: F401

from oblr.batch.packing import pack
from oblr.batch.types import Rollout
from oblr.errors import StaleEngineError
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.problem import Completion
from oblr.rollout import vllm as vllm_engine
from oblr.rollout.hf import HFEngine
from oblr.rollout.readback import COLUMNS, ROWS, Block, NotedWeights, Part, from_text, to_text
from oblr.rollout.vllm import VLLMEngine
from oblr.run.randomness import random_state


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    untied = tmp_path_factory.mktemp("untied")
    lm = load_model(str(POCKET), "float32")
    lm.config.tie_word_embeddings = False
    lm.lm_head.weight = torch.nn.Parameter(lm.lm_head.weight.detach() * 1.01)
    lm.save_pretrained(untied)
    load_tokenizer(str(POCKET)).save_pretrained(untied)
    return {"tied": str(POCKET), "untied": str(untied)}


@pytest.fixture(
    scope="module",
    params=[
        *("hf-float32-tied", "hf-bfloat16-untied", "vllm-float32-untied", "vllm-bfloat16-tied"),
        *wide("hf-float32-untied", "hf-bfloat16-tied", "vllm-float32-tied", "vllm-bfloat16-untied"),
    ],
)
def setting(request, folders):
    """(engine, its model's folder, the states of all generators before it started and after)."""
    kind, dtype, tying = request.param.split("-")
    folder = folders[tying]
    engine = HFEngine(folder, dtype) if kind == "hf" else VLLMEngine(folder, dtype, 128)
    before = random_state()
    engine.start()
    yield engine, folder, (before, random_state())
    engine.close()


@pytest.fixture
def engine(setting):
    return setting[0]


@pytest.fixture
def policy(setting):
    """As it is in its folder; its weights leave in the engine's dtype, as they do under bf16-mixed."""
    engine, folder, _ = setting
    policy = PolicyModel(load_model(folder, "float32"), 1.0)
    synced(engine, policy, 1)
    return policy


def synced(engine, policy, version, on_the_way=lambda weights: weights):
    """As the data module does it."""
    weights = NotedWeights(policy.weights(getattr(torch, engine.dtype)), engine.dtype, 1, version)
    engine.sync(on_the_way(weights), version)
    for _ in weights:
        pass
    weights.compare(engine.read(weights.blocks))


#: Bounds on the largest |log π − log μ|, in nats, that let healthy runs live.
LARGEST = {"float32": 0.01, "bfloat16": 1.0}


def sgd_step(policy, problems, dtype):  # noqa: F811
    """So small that no log-probability of the right answers moves as far as any bound on the largest gap."""
    tokenizer, step = load_tokenizer(str(POCKET)), {"float32": 5e-5, "bfloat16": 1e-3}[dtype]
    packed = pack(
        [
            Rollout(p, tokenizer.encode(p.prompt), Completion(ids := tokenizer.encode(p.answer), ids, True), "", 0)
            for p in problems
        ]
    )
    before = policy(packed).logprobs
    gradient = torch.autograd.grad(before.sum(), list(policy.parameters()))
    norm = torch.stack([g.norm() for g in gradient]).norm()
    with torch.no_grad():
        for p, g in zip(policy.parameters(), gradient, strict=True):
            p += step * g / norm
        assert 0 < (policy(packed).logprobs - before).abs().max() < LARGEST[dtype]


def test_what_was_sent_is_what_is_read(engine, policy, problems):  # noqa: F811
    for version in range(2, 5):
        sgd_step(policy, problems, engine.dtype)
        synced(engine, policy, version)
    weights = NotedWeights(policy.weights(getattr(torch, engine.dtype)), engine.dtype, 1, 9)
    names = [name for name, _ in weights]
    assert {block.name for block in weights.blocks} == {*names, "lm_head.weight"}
    for block in weights.blocks:
        assert len(block.rows) <= ROWS
        assert len(block.columns) <= COLUMNS
    engine.sync(policy.weights(getattr(torch, engine.dtype)), 9)
    (parts,) = engine.read(weights.blocks)
    assert {part.values.dtype for part in parts} == {getattr(torch, engine.dtype)}


def test_a_skipped_sync_is_found_out_one_small_step_later(engine, policy, problems):  # noqa: F811
    sgd_step(policy, problems, engine.dtype)
    weights = NotedWeights(policy.weights(getattr(torch, engine.dtype)), engine.dtype, 1, 2)
    engine.weight_version = 2
    assert len(list(weights)) == len(dict(policy.weights()))
    with pytest.raises(
        StaleEngineError, match=r"after sync 2 it has other numbers .* in model\.embed.* more of 4\d weights"
    ):
        weights.compare(engine.read(weights.blocks))
    gap = largest_gap(policy, engine, problems, load_tokenizer(str(POCKET)), 1.0)
    assert gap < LARGEST[engine.dtype]


def old(policy):
    return {name: weight.clone() for name, weight in policy.weights()}


def test_half_a_sync_is_found_out(engine, policy, problems):  # noqa: F811
    before = old(policy)
    sgd_step(policy, problems, engine.dtype)

    def half(weights):
        for i, (name, weight) in enumerate(weights):
            yield name, weight if i < len(before) / 2 else before[name].to(weight)

    with pytest.raises(StaleEngineError, match=r"other numbers than it was sent in model\.layers\.\d"):
        synced(engine, policy, 2, half)


def test_a_sync_that_ends_half_way_is_found_out(engine, policy, problems):  # noqa: F811
    sgd_step(policy, problems, engine.dtype)
    with pytest.raises((StaleEngineError, RuntimeError), match=r"sent .*model\.layers\.\d"):
        synced(engine, policy, 2, lambda weights: itertools.islice(weights, 20))


def test_a_stale_head_is_found_out(setting, policy, problems, monkeypatch):  # noqa: F811
    engine, folder, _ = setting
    before = old(policy)
    sgd_step(policy, problems, engine.dtype)
    monkeypatch.setattr(vllm_engine, "repack_tied_head", lambda model: None)  # as vLLM leaves it

    def stale(weights):
        for name, weight in weights:
            yield name, before[name].to(weight) if name == "lm_head.weight" else weight

    if isinstance(engine, HFEngine) and folder == str(POCKET):
        head = engine.model.lm_head
        tied, head.weight = head.weight, torch.nn.Parameter(head.weight.clone(), requires_grad=False)
        with pytest.raises(RuntimeError, match=r"no weights for \['lm_head.weight'\]"):
            synced(engine, policy, 2)
        head.weight = tied
        return
    if engine.dtype == "bfloat16" and folder == str(POCKET) and not torch.cpu._is_avx512_supported():
        synced(engine, policy, 2, stale)  # such processors are given no packed bfloat16: it reads the embedding itself
        return
    with pytest.raises(StaleEngineError, match=r"other numbers than it was sent in lm_head\.weight$"):
        synced(engine, policy, 2, stale)


def test_a_swapped_layer_is_found_out(engine, policy):
    def swapped(weights):
        weights = dict(weights)
        other = {"1": "2", "2": "1"}
        for name in weights:
            parts = name.split(".")
            twin = ".".join([*parts[:2], other.get(parts[2], parts[2]), *parts[3:]]) if "layers" in parts else name
            yield name, weights[twin]

    with pytest.raises(StaleEngineError, match=r"other numbers than it was sent in model\.layers\.[12]\."):
        synced(engine, policy, 2, swapped)


def test_a_number_that_is_not_one_is_found_out(engine, policy):
    policy.lm.model.norm.weight.data[:] = float("nan")
    with pytest.raises(StaleEngineError, match=r"model\.norm\.weight"):
        synced(engine, policy, 2)


def test_no_generator_of_this_process_is_touched(setting, policy, problems):  # noqa: F811
    engine, _, (before_start, after_start) = setting
    tokenizer, state = load_tokenizer(str(POCKET)), random_state()
    synced(engine, policy, 2)
    prompts = [tokenizer.encode(p.prompt) for p in problems]
    engine.generate(prompts, sampling(tokenizer), seeds_of(prompts, 1))
    engine.sleep()
    assert same_states(state, random_state())
    assert same_states(before_start, after_start)


def same_states(a, b):
    kind, keys, *rest = a["numpy"]
    return (
        a["python"] == b["python"]
        and (kind, *rest) == (b["numpy"][0], *b["numpy"][2:])
        and torch.equal(keys, b["numpy"][1])
        and torch.equal(a["torch"], b["torch"])
    )


def test_all_ranks_note_the_same_and_every_version_something_else():
    weights = {"a": torch.randn(500, 40), "b": torch.randn(7)}

    def noted(seed, version):
        notes = NotedWeights(weights.items(), "float32", seed, version)
        assert dict(notes).keys() == weights.keys()
        return notes

    first = noted(1, 1)
    for block, again in zip(first.blocks, noted(1, 1).blocks, strict=True):
        assert block.name == again.name
        assert torch.equal(block.rows, again.rows)
        assert torch.equal(block.columns, again.columns)
    for seed, version in ((1, 2), (2, 1)):
        assert not torch.equal(noted(seed, version).blocks[0].rows, first.blocks[0].rows)


def shards(block, values, size):
    """As two processes of an engine have it: rows and columns below ``size`` of both, and the others."""
    for here in (block.rows < size, block.rows >= size):
        rows = here.nonzero()[:, 0]
        yield [Part(rows, torch.arange(len(block.columns)), values[rows])]


def test_parts_of_several_processes():
    weight = torch.randn(500, 40)
    notes = NotedWeights([("w", weight)], "float32", 1, 1)
    list(notes)
    (block,) = [Block(*one) for one in from_text(to_text(notes.blocks))]
    right = weight[block.rows][:, block.columns]
    notes.compare(shards(block, right, 250))
    first, _ = shards(block, right, 250)
    with pytest.raises(StaleEngineError, match=r"has no w$"):
        notes.compare([first])
    wrong = right.clone()
    wrong[5, 5] = wrong[5, 5].nextafter(torch.tensor(9.0))
    with pytest.raises(StaleEngineError, match=r"other numbers than it was sent in w$"):
        notes.compare([*shards(block, right, 250), *shards(block, wrong, 250)])
