"""Become the vLLM server that a run would start for itself: ``python src/serve.py HOST PORT experiment=pocket``.

The run then takes ``rollout.engine=server rollout.engines.server.url=http://HOST:PORT``.
"""

import os
import sys

import hydra
from hydra.types import RunMode

from launch import composer, job_config, one_line_errors


def main(host: str, port: str, *overrides: str) -> None:
    with composer() as compose:
        cfg = job_config(compose("train", overrides, RunMode.MULTIRUN))
    engine = hydra.utils.instantiate(cfg.rollout.engines.server, url=None)()
    command = [sys.executable, "-m", *engine.arguments, "--host", host, "--port", port]
    os.execve(sys.executable, command, os.environ | engine.environment)


if __name__ == "__main__":
    with one_line_errors():
        main(*sys.argv[1:])
