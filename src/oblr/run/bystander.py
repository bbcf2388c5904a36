"""A small process beside one whose threads may all be held up, as while Python loads a large library.

It looks at the bytes that :mod:`oblr.run.stopping` is to read. What lies unread there for `PATIENCE` it answers itself:
it says the line that stands in the notes, and ends a process that is to end and does not. It is started by its file,
without any package, so that it is there in a hundredth of a second and holds nothing.
"""

import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

#: Seconds that the process has to answer for itself, and to end by itself; and where it has begun to do so.
PATIENCE, MERCY = 0.4, 2.0
LATE, ENDING = 2.0, 60.0
#: Bytes of the notes; behind them stands how many of the unread signals this process has spoken of, and whether the
#: other one is answering.
ROOM = 8192
#: On a terminal: the line under way away, and the cursor back.
CLEAN = "\r\x1b[2K\x1b[?25h"


def clear(folder: str, kept: Sequence[str] | None) -> None:
    """Remove what a run has put into its folder, and the folder where it has made that; ``kept`` was there before."""
    if kept is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name in set(os.listdir(folder)) - set(kept):
        path = Path(folder, name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def unread(channel: socket.socket) -> bytes | None:
    """What nobody has read; None where there will be nothing more."""
    try:
        return channel.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT) or None
    except BlockingIOError:
        return b""


def main(channel: socket.socket, notes: int, screen: int, process: int) -> None:
    """Until ``process``, which has started this one, ends."""
    known, since = 0, 0.0
    while True:
        select.select([channel], [], [], 1.0)
        waiting = unread(channel)
        if waiting is None or os.getppid() != process:
            return
        if len(waiting) != known:
            known, since = len(waiting), time.monotonic()
        if not waiting:
            continue
        time.sleep(0.1)
        seconds = time.monotonic() - since
        spoken, answering = os.pread(notes, 2, ROOM)
        told = json.loads(os.pread(notes, ROOM, 0).rstrip(b"\0"))
        if known > spoken and seconds > (LATE if answering else PATIENCE):
            line = told["again"] if told["received"] or spoken else told["line"]
            if line and not told["silent"]:
                os.write(screen, f"{CLEAN if os.isatty(screen) else ''}{line}\n".encode())
            os.pwrite(notes, bytes([spoken + 1]), ROOM)
        again = told["received"] or waiting.count(signal.SIGINT) > 1
        ends = told["again"] is not None if again else not told["waits"]
        if ends and seconds > (ENDING if answering else MERCY):
            os.kill(process, signal.SIGKILL)
            if told["folder"]:
                clear(told["folder"], told["kept"])
            return


if __name__ == "__main__":
    channel, notes, screen, process = map(int, sys.argv[1:])
    main(socket.socket(fileno=channel), notes, screen, process)
