"""The base model can be rebuilt by its command."""

from conftest import POCKET, run_script

from oblr.policy.model import load_model


def test_the_pocket_base_is_rebuilt_with_the_shipped_tokenizer_and_shape(tmp_path):
    folder = tmp_path / "pocket"
    result = run_script("pretrain.py", "experiment=pocket_base", "pretraining.steps=3", f"export_to={folder}")
    assert result.returncode == 0, result.stderr
    for name in ("tokenizer.json", "config.json"):
        assert (folder / name).read_text() == (POCKET / name).read_text()
    shapes = [{name: p.shape for name, p in load_model(str(f), "float32").named_parameters()} for f in (folder, POCKET)]
    assert shapes[0] == shapes[1]
    assert sum(size.numel() for size in shapes[0].values()) < 3_000_000
