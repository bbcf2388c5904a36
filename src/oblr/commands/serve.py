"""Become the vLLM server that a run would start for itself.

The run then takes ``rollout.engine=server rollout.engines.server.url=http://HOST:PORT``, and the same
``rollout.engines.server.token_file``: who has not read it is not heard.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.types import RunMode

from oblr.commands.checks import check_engine, check_model, check_policy, check_served
from oblr.commands.compose import composer, job_config
from oblr.commands.launch import settle
from oblr.commands.parser import Parser
from oblr.policy.loading import load_tokenizer
from oblr.rollout.proof import VARIABLE, secret_of
from oblr.run.host import check_installed
from oblr.run.private import private_folder


def serve(host: str, port: int, overrides: Sequence[str]) -> None:
    with composer() as compose:
        cfg = job_config(compose("train", overrides, RunMode.MULTIRUN))
    settle(cfg, "train")
    check_installed(vllm=True, triton=True)
    config = check_policy(cfg.policy.path, cfg.policy.dtype, cfg.rollout.max_model_len)
    check_engine(config, "server", cfg.rollout.engines)
    check_model(cfg.policy.path, config, load_tokenizer(cfg.policy.path))
    check_served(cfg.policy.path, config, "server", cfg.rollout.engines)
    settings = cfg.rollout.engines.server
    token = Path(settings.token_file).resolve()
    secret_of(token)
    engine = hydra.utils.instantiate(settings, url=None)()
    command = [sys.executable, "-m", *engine.arguments, "--host", host, "--port", str(port)]
    own = {VARIABLE: str(token), "VLLM_RPC_BASE_PATH": str(private_folder())}
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # SLURM asks runs to end by it, and these need their servers for that
    os.execve(sys.executable, command, os.environ | engine.environment | own)


def main() -> None:
    parser = Parser(
        __doc__,
        "python src/serve.py 127.0.0.1 8000 experiment=pocket",
        "python src/serve.py 0.0.0.0 8000 experiment=oblr_qwen3_8b rollout.engines.server.gpus=4",
        "python src/serve.py HOST PORT policy.path=FOLDER",
    )
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("overrides", nargs="*", help="as for train.py")
    serve(**vars(parser.parse_args()))
