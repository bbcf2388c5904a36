"""The base model can be rebuilt by its command."""

import pytest
from conftest import POCKET, run_script

from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.pretraining import CorpusDataset


@pytest.mark.wide
def test_the_pocket_base_is_rebuilt_with_the_shipped_tokenizer_and_shape(tmp_path):
    folder = tmp_path / "pocket"
    result = run_script("pretrain.py", "experiment=pocket_base", "pretraining.steps=3", f"export_to={folder}")
    assert result.returncode == 0, result.stderr
    for name in ("tokenizer.json", "config.json"):
        assert (folder / name).read_text() == (POCKET / name).read_text()
    shapes = [{name: p.shape for name, p in load_model(str(f), "float32").named_parameters()} for f in (folder, POCKET)]
    assert shapes[0] == shapes[1]
    assert sum(size.numel() for size in shapes[0].values()) < 3_000_000


def test_only_responses_are_learnt_and_their_end_where_they_have_one():
    tokenizer = load_tokenizer(str(POCKET))
    examples = [("1 + 2 =\n", "Answer: 3", True), ("7 - 4 + 1 =\n", "7 - 4", False)]
    (batch,) = CorpusDataset(iter(examples), tokenizer, batch_size=2, max_tokens=80)
    for (prompt, response, ends), ids, labels in zip(examples, batch["input_ids"], batch["labels"], strict=True):
        learnt = labels != -100
        assert tokenizer.decode(ids[~learnt]).startswith(prompt)
        assert tokenizer.decode(labels[learnt]) == response + tokenizer.eos_token * ends
        assert (ids[learnt] == labels[learnt]).all()
    (cut,) = CorpusDataset(iter(examples), tokenizer, batch_size=2, max_tokens=6)
    assert cut["input_ids"].shape == cut["labels"].shape == (2, 6)
