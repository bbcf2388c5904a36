"""Whole configurations, as the scripts compose them."""

from conftest import ROOT
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from oblr.commands.compose import register_resolvers


def composed(*overrides: str) -> DictConfig:
    register_resolvers()
    pretrains = any(o.startswith("experiment=") and o.endswith("_base") for o in overrides)
    script = "pretrain" if pretrains else "eval" if overrides[0].startswith("benchmarks=") else "train"
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose(script, overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)  # experiments that sweep name their folders after the choices
    return OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
