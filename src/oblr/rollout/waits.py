"""No wait for another machine is without end: each has its time, and a signal that came ends all that lead nowhere."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from oblr.run.stopping import process

#: Seconds between looks.
TICK = 0.1
#: Seconds that the other side has to show that it lives, once this process has been asked to end.
ALIVE = 0.7


class Wait:
    """One that is under way.

    Attributes:
        over: why it was ended, if it was.
    """

    def __init__(self, connection: socket.socket, end: float, reason: str):
        self.connection, self.end, self.reason, self.over = connection, end, reason, ""

    def stop(self, why: str) -> None:
        self.over = self.over or why
        with suppress(OSError):  # it has ended by itself
            self.connection.shutdown(socket.SHUT_RDWR)  # whoever reads from it reads its end


class Waits:
    """All waits for one other side.

    Args:
        where: it is.
        alive: returns if it answers, and raises if not.
    """

    def __init__(self, where: str, alive: Callable[[], object]):
        self.where, self.alive = where, alive
        self.open: set[Wait] = set()
        self.changed = threading.Condition()
        self.watching = False

    @contextmanager
    def limited(self, connection: socket.socket, seconds: float | None) -> Iterator[Wait]:
        """While something is read from ``connection``, for at most ``seconds``; None: as long as others see to it."""
        end = float("inf") if seconds is None else time.monotonic() + seconds
        wait = Wait(connection, end, f"no answer within {seconds:g} s" if seconds is not None else "")
        with self.changed:
            self.open.add(wait)
            if not self.watching:
                self.watching = True
                threading.Thread(target=self._watch, daemon=True).start()
        try:
            yield wait
        finally:
            with self.changed:
                self.open.discard(wait)

    def stop(self, why: str) -> None:
        """End all of them."""
        with self.changed:
            for wait in self.open:
                wait.stop(why)

    def _watch(self) -> None:
        heard = 0.0
        while True:
            with self.changed:
                if not self.open:
                    self.watching = False
                    return
                now = time.monotonic()
                for wait in self.open:
                    if now > wait.end:
                        wait.stop(wait.reason)
            if process.received is not None and process.stage.waits and now > heard + ALIVE:
                if not self._answers():
                    process.insist(f"{self.where} does not answer")
                heard = time.monotonic()
            time.sleep(TICK)

    def _answers(self) -> bool:
        """Whether the other side does, in time."""
        answered = threading.Event()

        def ask() -> None:
            with suppress(Exception):
                self.alive()
                answered.set()

        threading.Thread(target=ask, daemon=True).start()
        return answered.wait(ALIVE)
