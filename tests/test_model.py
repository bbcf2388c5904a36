import pytest
import torch
from conftest import tiny_model

from oblr.errors import SettingError
from oblr.policy.model import TokenScorer, load_config, stored_weights, weights_digest


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["20KB", "1GB"])
def test_stored_weights_are_what_an_engine_is_synced_with(tmp_path, tied, shard):
    lm = tiny_model(tied)
    lm.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    expected, found = dict(TokenScorer(lm, 1.0).weights()), dict(stored_weights(str(tmp_path)))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


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
