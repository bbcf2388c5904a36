"""What a model's folder says of sampling changes no sample: the ends are those that were asked for."""

import json
import shutil

import pytest
from cases import wide
from conftest import POCKET
from transformers import AutoTokenizer

from oblr.batch.types import Sampling
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.rollout.hf import HFEngine
from oblr.rollout.vllm import VLLMEngine


@pytest.mark.parametrize("kind", ["hf", *wide("vllm")])
def test_a_folders_generation_config_changes_no_sample(tmp_path, kind):
    """A repetition penalty would draw from another distribution than the log-probabilities are of."""
    tokenizer, model = AutoTokenizer.from_pretrained(POCKET), PolicyModel(load_model(str(POCKET), "float32"), 1.0)
    shutil.copytree(POCKET, tmp_path / "plain")
    shutil.copytree(POCKET, tmp_path / "told")
    (digit,) = tokenizer.encode("1")
    told = {"eos_token_id": [tokenizer.eos_token_id, digit], "do_sample": True, "top_k": 1, "repetition_penalty": 5.0}
    (tmp_path / "told" / "generation_config.json").write_text(json.dumps(told))

    def sampled(folder):
        engine = HFEngine(folder, "float32") if kind == "hf" else VLLMEngine(folder, "float32", 128)
        engine.start()
        engine.sync(model.weights(), 1)
        sampling = Sampling(8, 1.0, 48, (tokenizer.eos_token_id,))
        (group,) = engine.generate([tokenizer.encode("12 + 3 =\n")], sampling, [0])
        engine.close()
        return [completion.token_ids for completion in group]

    assert sampled(str(tmp_path / "told")) == sampled(str(tmp_path / "plain"))
