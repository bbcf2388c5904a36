"""Evaluations in the process of a test."""

from conftest import ROOT
from hydra import compose, initialize_config_dir

from oblr.commands import evaluate as script
from oblr.commands.compose import register_resolvers
from oblr.commands.launch import settle


def run(tmp_path, *overrides):
    """``python src/eval.py`` in this process, without what turns errors into lines."""
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("eval", [f"paths.output_dir={tmp_path / 'run'}", f"paths.runs={tmp_path}", *overrides])
    settle(cfg, "eval")
    script.main(cfg)
