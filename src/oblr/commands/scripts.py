"""Functions that ``src/*.py`` and the commands of an installed package (``oblr-train``, ``oblr-eval`` …) start.

What is large is imported when signals are heard: a Ctrl-C that comes while Python imports is one line, too.
"""

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    """Until signals are heard, which takes some imports itself."""
    os.write(2, b"stopped\n")
    os._exit(128 + number)


signal.signal(signal.SIGINT, _end)

from oblr.run.stopping import listen  # noqa: E402 - a Ctrl-C during this import, too


def train() -> None:
    listen("stopped; nothing has been trained")
    from oblr.commands.launch import launch

    launch("train", "oblr.commands.train")


def evaluate() -> None:
    listen("stopped; nothing has been sampled")
    from oblr.commands.launch import launch

    launch("eval", "oblr.commands.evaluate")


def pretrain() -> None:
    listen("stopped; no model has been made")
    from oblr.commands.launch import launch

    launch("pretrain", "oblr.commands.pretrain")


def sweep() -> None:
    _call("sweep")


def report() -> None:
    _call("report")


def settings() -> None:
    _call("reference")


def serve() -> None:
    _call("serve")


def snapshot() -> None:
    _call("snapshot")


def _call(name: str) -> None:
    """``main`` of the module of that name, which reads the command line itself."""
    listen("stopped")
    from importlib import import_module

    from oblr.commands.launch import one_line_errors
    from oblr.run.terminal import show_uncaught

    sys.excepthook = show_uncaught
    with one_line_errors():
        import_module(f"oblr.commands.{name}").main()


if __name__ == "__main__":  # a sweep's runs
    train()
