import pytest
import torch
from conftest import make_rollouts, tiny_model
from safetensors.torch import load_file

from oblr.batch.packing import pack
from oblr.errors import SettingError
from oblr.policy.loading import load_config, stored_weights, weights_digest
from oblr.policy.model import PolicyModel


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["20KB", "1GB"])
def test_stored_weights_are_what_an_engine_is_synced_with(tmp_path, tied, shard):
    lm = tiny_model(tied)
    lm.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    expected, found = dict(PolicyModel(lm, 1.0).weights()), dict(stored_weights(str(tmp_path)))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_are_those_of_the_models_own_logits(temperature):
    lm, rollouts = tiny_model(tied=True), make_rollouts([7, 3, 1])
    packed, expected = pack(rollouts), {"logprobs": [], "entropy": [], "collision": []}
    with torch.no_grad():
        found = PolicyModel(lm, temperature)(packed)
    for rollout in rollouts:
        ids = torch.tensor([rollout.prompt_ids + rollout.completion.token_ids])
        with torch.no_grad():
            logits = lm(input_ids=ids).logits[0, len(rollout.prompt_ids) - 1 : -1]
        for row, token in zip((logits / temperature).softmax(-1), rollout.completion.token_ids, strict=True):
            expected["logprobs"].append(row[token].log())
            expected["entropy"].append(-(row * row.log()).sum())
            expected["collision"].append(row.square().sum())
    assert packed.target_segments.ids.tolist() == [0] * 7 + [1] * 3 + [2]
    for name, values in expected.items():
        torch.testing.assert_close(getattr(found, name), torch.stack(values), rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_there(tmp_path):
    tiny_model(tied=False).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SettingError, match=r"^model: .*no .* in safetensors files"):
        list(stored_weights(str(tmp_path), "model"))


def test_a_digest_tells_models_apart_wherever_they_lie(tmp_path):
    digests = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        tiny_model(tied=True, seed=seed).save_pretrained(tmp_path / folder)
        digests.append(weights_digest(str(tmp_path / folder), load_config(str(tmp_path / folder))))
    assert digests[0] == digests[1] != digests[2]


def test_a_digest_is_of_all_files(tmp_path):
    lm, digests = tiny_model(tied=False), []
    for _ in range(2):
        lm.save_pretrained(tmp_path, max_shard_size="20KB")
        digests.append(weights_digest(str(tmp_path), load_config(str(tmp_path))))
        lm.lm_head.weight.data += 1
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert "lm_head.weight" not in load_file(files[0])
    assert digests[0] != digests[1]
