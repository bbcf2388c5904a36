"""A configuration as it is written down: what refers to the environment still does, and secrets are masked."""

import copy
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from oblr.run.secrets import is_secret, keep_secret, masked
from oblr.settings.check import leaves


def _reference(name: str, *default: Any) -> str:
    return f"${{oc.env:{','.join(map(str, (name, *default)))}}}"


def _of_environment(name: str, *default: Any) -> str | None:
    """OmegaConf's own; and nobody is told the values of variables that are called like secrets."""
    value = oc.env(name, *default)
    if is_secret(name):
        keep_secret(value, _reference(name))
    return value


def heed_secrets() -> None:
    """From now on references to the environment are heeded when they are resolved."""
    OmegaConf.register_new_resolver("oc.env", _of_environment, replace=True)


def know_secrets(cfg: DictConfig) -> None:
    """From now on no line of this process has the value of a setting that is called like a secret."""
    for path, value in leaves(OmegaConf.to_container(cfg, resolve=False)):
        if is_secret(path) and isinstance(value, str) and "${" in value:
            keep_secret(OmegaConf.select(cfg, path), value)
        else:
            masked(value, path)


def written(cfg: DictConfig) -> dict[str, Any]:
    """The configuration resolved, but for what is of the environment; secrets are masked."""
    OmegaConf.register_new_resolver("oc.env", _reference, replace=True)
    try:
        found = OmegaConf.to_container(copy.deepcopy(cfg), resolve=True)
    except (OmegaConfBaseException, ValueError, TypeError):  # a resolver that calculates with a variable's value
        found = OmegaConf.to_container(cfg, resolve=False)
    finally:
        heed_secrets()
    return masked(found)  # type: ignore[no-any-return]


def as_yaml(kept: dict[str, Any]) -> str:
    """The YAML of a configuration that :func:`written` gives, for a run's folder."""
    return OmegaConf.to_yaml(OmegaConf.create(kept))


def as_told(cfg: DictConfig) -> dict[str, Any]:
    """The configuration with all its references; secrets are masked."""
    return masked(OmegaConf.to_container(cfg, resolve=False))  # type: ignore[no-any-return]
