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

from callbacks.record import METRICS
from oblr.report.page import html
from oblr.report.runs import find_runs
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
    """The page of what these folders hold now, made anew when a run has logged something or has finished."""

    def __init__(self, folders: Sequence[Path]):
        self.folders, self.lock = folders, Lock()
        self.stamp, self.text = "", b""

    def page(self) -> tuple[str, bytes]:
        """Its stamp, which changes when it does, and its bytes.

        Raises:
            SettingError: there is no run, or none that has logged anything.
        """
        with self.lock:
            if (stamp := self.now()) != self.stamp:
                self.text = html(find_runs(self.folders)).encode()
                self.stamp = stamp
            return self.stamp, self.text

    def now(self) -> str:
        """When any of the runs last wrote something that the page shows."""
        written = [path for folder in self.folders for name in (METRICS, FINISHED) for path in folder.rglob(name)]
        return str(max((path.stat().st_mtime_ns for path in written), default=0))


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
            if self.path != f"/{self.server.token}/":
                return self.send_error(HTTPStatus.NOT_FOUND)
            stamp, text = live.page()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("ETag", f'"{stamp}"')
            self.end_headers()
            if body:
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody asks who asked."""

    return Server(Handler, port)
