"""The report of runs under way, on this machine's loopback alone: ``python src/report.py --follow RUN``.

Whoever else works on the machine reaches the port, too, and so does every page that a browser on it shows. So the
address has a token, which the terminal alone has been told.
"""

import secrets
from collections.abc import Sequence
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from oblr.record.curves import METRICS
from oblr.report.page import html
from oblr.report.pieces import Served, digest, script
from oblr.report.runs import Reading, Run, read_run, runs_and_others
from oblr.run.provenance import FINISHED

HOST = "127.0.0.1"
#: What a browser is to do with the page besides showing it: nothing.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Live:
    """The page of what these folders hold now, made anew when a run has logged something or has finished.

    Of what a run has written, only what is new is read each time.
    """

    def __init__(self, folders: Sequence[Path]):
        self.folders, self.lock = folders, Lock()
        self.stamp, self.text, self.shelf = "", b"", Served()
        self.readings, self.runs = dict[Path, Reading](), dict[Path, tuple[str, Run]]()

    def page(self) -> tuple[str, bytes]:
        """Its stamp, which changes when it does, and its bytes.

        Raises:
            SettingError: there is no run, or none that has logged anything.
        """
        with self.lock:
            if (stamp := self.now()) != self.stamp:
                self.shelf = Served()
                self.text = html(runs_and_others(self.folders, self.read)[0], self.shelf).encode()
                self.stamp = stamp
            return self.stamp, self.text

    def piece(self, address: str) -> bytes | None:
        """A piece of the page that was made last; None where it has no such piece."""
        with self.lock:
            make = self.shelf.contents.get(address)
            return script(make()) if make else None

    def read(self, folder: Path) -> Run:
        """A run, as it was read before if it has written nothing since."""
        stamp = stamp_of([folder])
        earlier, run = self.runs.get(folder, ("", None))
        if run is None or stamp != earlier:
            run = read_run(folder, self.readings.setdefault(folder, Reading(folder)))
            self.runs[folder] = stamp, run
        return run

    def now(self) -> str:
        """Which changes when any of the runs has written something that the page shows."""
        return stamp_of([each for folder in self.folders for each in (folder, *folder.glob("*/"))])


def stamp_of(folders: Sequence[Path]) -> str:
    """Of what runs in these folders have written: it changes with sizes and times, also where a clock goes back."""
    written = [path for folder in folders for name in (METRICS, FINISHED) if (path := folder / name).exists()]
    found = [(str(path), path.stat()) for path in written]
    return digest(tuple((path, about.st_ino, about.st_size, about.st_mtime_ns) for path, about in found))


class Server(ThreadingHTTPServer):
    """Attributes: ``token``, the first part of every path that is answered."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int):
        super().__init__((HOST, port), handler)
        self.token = secrets.token_urlsafe(32)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def asked_by_us(self, host: str, path: str) -> bool:
        """Whether a request is for this machine's loopback, and by somebody who knows the address.

        Another site's page may have its name resolved to this machine, but its requests carry that name.
        """
        known = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        begins = path.split("/")[1] if path.count("/") > 1 else ""
        return host in known and compare_digest(begins.encode(), self.token.encode())


def server(folders: Sequence[Path], port: int) -> Server:
    """Serves the page at :attr:`Server.address`; of port 0 the system chooses one.

    Raises:
        SettingError: there is no run to follow.
        OSError: the port is taken.
    """
    live = Live(folders)
    live.page()

    class Handler(BaseHTTPRequestHandler):
        server: Server
        timeout = 30  # seconds that a request may take to come
        server_version, sys_version = "report", ""

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def answer(self, body: bool) -> None:
            if not self.server.asked_by_us(self.headers["Host"] or "", self.path):
                return self.send_error(HTTPStatus.FORBIDDEN)
            address = self.path.removeprefix(f"/{self.server.token}/")
            if not address:
                kind = "text/html"
                stamp, text = live.page() if body else (live.now(), b"")
            elif (made := live.piece(address)) is not None:
                kind, stamp, text = "text/javascript", "", made
            else:
                return self.send_error(HTTPStatus.NOT_FOUND)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("ETag", f'"{stamp}"')
            if body:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if body:
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody asks who asked."""

    return Server(Handler, port)
