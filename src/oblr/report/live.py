"""The report of runs under way, on this machine's loopback alone: ``python src/report.py --follow RUN``."""

from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from callbacks.record import METRICS
from oblr.report.page import html
from oblr.report.runs import find_runs
from oblr.run.provenance import FINISHED

HOST = "127.0.0.1"


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


def server(folders: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """Serves the page at ``http://127.0.0.1:port/``; of port 0 the system chooses one.

    Raises:
        SettingError: there is no run to follow.
        OSError: the port is taken.
    """
    live = Live(folders)
    live.page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def answer(self, body: bool) -> None:
            # Another site's page may have its name resolved to this machine, but its requests carry that name.
            if (self.headers["Host"] or "").partition(":")[0] not in (HOST, "localhost"):
                return self.send_error(HTTPStatus.FORBIDDEN)
            if self.path != "/":
                return self.send_error(HTTPStatus.NOT_FOUND)
            stamp, text = live.page()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("ETag", f'"{stamp}"')
            self.end_headers()
            if body:
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody asks who asked."""

    return ThreadingHTTPServer((HOST, port), Handler)
