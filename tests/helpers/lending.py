"""A server that one process has is used by a run of another."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from oblr.rollout.server import ServerEngine


@contextmanager
def lent(engine: ServerEngine) -> Iterator[tuple[str, str]]:
    """Overrides by which a run uses this engine's server, which is given up for that long."""
    assert engine.process is not None
    run = engine.server.run
    engine.server.release()
    settings = "rollout.engines.server"
    yield f"{settings}.url={engine.server.url}", f"{settings}.token_file={engine.process.token}"
    end = time.monotonic() + 60
    while engine.server.taken and time.monotonic() < end:
        time.sleep(0.1)
    engine.server.claim(run)
