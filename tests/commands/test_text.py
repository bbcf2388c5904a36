"""Training on text from a file, in a chat template, with a policy and a tokenizer that the code has never met."""

import csv

import pytest
from byte_tokenizer import byte_tokenizer
from conftest import run_script, tiny_model

from oblr.record.curves import read_curves


@pytest.mark.wide
def test_a_llama_with_a_tokenizer_of_its_own_trains_on_a_file(tmp_path, monkeypatch):
    """Under real vLLM, from rows of which some are too long and some held out."""
    policy = tmp_path / "policy"
    tokenizer = byte_tokenizer(policy)
    tiny_model(tied=True, family="llama", vocab_size=len(tokenizer), head_dim=32).save_pretrained(policy)
    questions = [f"How many are {i} and {i + 1}?" for i in range(8)] + ["How many are " + "1 and " * 50 + "1?"]
    for name, part in (("train", questions), ("test", questions[:2])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["problem", "answer"], *([question, "9"] for question in part)])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    (tmp_path / "length.py").write_text("def reward(problem, text, completion):\n    return len(text) % 3\n")
    result = run_script(
        "train.py",
        *("data=local", f"data.path={tmp_path}/train.csv", f"data.held_out_path={tmp_path}/test.csv"),
        *("data.max_prompt_tokens=150", "prompt=boxed", "prompt.chat=true", "prompt.system=Be brief."),
        *(f"policy.path={policy}", "reward=python", "reward.path=length.reward", "steps=2"),
        *("rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.max_model_len=256"),
        f"paths.output_dir={tmp_path}/run",
    )
    assert result.returncode == 0, result.stderr
    assert "data.train: 2 of 9 problems dropped: sharing 13 words in a row, or all, with" in result.stdout
    assert "data.train: 1 of 7 problems dropped: prompts longer than data.max_prompt_tokens=150" in result.stdout
    curves = read_curves(tmp_path / "run")
    assert max(curves["rollout/logprob_gap_max"][1]) < 1e-3
    assert min(curves["gradnorm/mean"][1]) > 0
    assert len(curves["train/reward"][1]) == 2
