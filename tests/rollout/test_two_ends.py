"""A chat model with two end tokens ends at either, in every engine, in training and in evaluation."""

import json

import pytest
import torch
from conftest import POCKET, run_script
from kept_responses import read_rollouts
from transformers import AutoModelForCausalLM, AutoTokenizer

from oblr.batch.packing import pack
from oblr.batch.types import Rollout, Sampling
from oblr.data.ends import end_tokens
from oblr.data.procedural import ReasoningGymProblems
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.record.curves import read_curves
from oblr.rollout.hf import HFEngine
from oblr.rollout.vllm import VLLMEngine

TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>\n{% endif %}{% endfor %}"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """The pocket policy; where it would end a text, it ends a turn as often."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer, lm = AutoTokenizer.from_pretrained(POCKET), AutoModelForCausalLM.from_pretrained(POCKET)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    (turn,) = tokenizer.convert_tokens_to_ids(["<|im_end|>"])
    with torch.no_grad():
        if turn >= len(lm.lm_head.weight):
            lm.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        lm.get_input_embeddings().weight[turn] = lm.get_input_embeddings().weight[tokenizer.eos_token_id]
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), turn


@pytest.mark.parametrize("kind", ["hf", "vllm"])
def test_an_engine_ends_at_either_and_has_the_policys_logprobs(chat, kind):
    folder, turn = chat
    tokenizer, model = AutoTokenizer.from_pretrained(folder), PolicyModel(load_model(folder, "float32"), 1.0)
    ends = end_tokens(folder, tokenizer)
    assert ends == (tokenizer.eos_token_id, turn)
    engine = HFEngine(folder, "float32") if kind == "hf" else VLLMEngine(folder, "float32", 128)
    engine.start()
    engine.sync(model.weights(), 1)
    problems = list(ReasoningGymProblems("chain_sum", 8, 5, "{expression} =\n", {"min_terms": 3, "max_terms": 3}))
    prompts = [tokenizer.encode(problem.prompt) for problem in problems]
    groups = engine.generate(prompts, Sampling(8, 1.0, 64, ends), range(0, 800, 100))
    engine.close()
    rollouts = [
        Rollout(problem, prompt, completion, "", 0.0)
        for problem, prompt, group in zip(problems, prompts, groups, strict=True)
        for completion in group
    ]
    finished = [rollout.completion.token_ids for rollout in rollouts if rollout.completion.finished]
    assert {ids[-1] for ids in finished} == set(ends)
    assert not any(set(ids[:-1]) & set(ends) for ids in finished)
    packed = pack(rollouts)
    with torch.no_grad():
        assert (model(packed)[0] - packed.behaviour_logprobs).abs().max() < 1e-3


@pytest.mark.wide
def test_a_run_and_an_evaluation_end_at_either(chat, tmp_path):
    """Half of those that end would else go on to the limit."""
    folder, _ = chat
    small = ("rollout.engine=hf", f"policy.path={folder}", "rollout.prompts_per_step=4", "data.held_out.size=4")
    run = run_script("train.py", "experiment=pocket", *small, "steps=1", f"paths.output_dir={tmp_path / 'run'}")
    assert run.returncode == 0, run.stderr
    rows = read_rollouts(tmp_path / "run" / "rollouts", 1)
    assert [row["verdict"] for row in rows].count("scored") > 2 / 3 * len(rows)
    assert not any("\ufffd" in row["text"] for row in rows)  # what goes on has the other end in it, which has no text
    assert max(read_curves(tmp_path / "run")["rollout/logprob_gap_max"][1]) < 1e-3
    asked = (f"model={folder}", "benchmarks=[chain_sum]", "rollout.engine=hf", "limit=4", "samples=8", "k=[8]")
    evaluation = run_script("eval.py", *asked, "max_new_tokens=64", f"paths.output_dir={tmp_path / 'eval'}")
    assert evaluation.returncode == 0, evaluation.stderr
    rows = [json.loads(line) for line in (tmp_path / "eval" / "chain_sum.jsonl").read_text().splitlines()]
    finished = [end for row in rows for end in row["finished"]]
    assert sum(finished) > 2 / 3 * len(finished)
    cut = run_script("eval.py", *asked, "stop=['+']", f"paths.output_dir={tmp_path / 'cut'}")
    assert cut.returncode == 0, cut.stderr
    rows = [json.loads(line) for line in (tmp_path / "cut" / "chain_sum.jsonl").read_text().splitlines()]
    assert not any("+" in response for row in rows for response in row["responses"])
