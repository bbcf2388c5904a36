"""JSON over HTTP with one vLLM server."""

import json
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oblr.errors import EngineDiedError, SettingError

#: How long a host that is gone stays unnoticed while a reply is awaited: 30 s of silence, then 3 probes 10 s apart.
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


class Refused(EngineDiedError):
    """The server answered, but not with success."""


class Client:
    """Calls of one server; may be used by several threads at once.

    Args:
        url: http://host:port.
        log: what the server writes, if it is known.

    Raises:
        SettingError: that is no such URL.
    """

    def __init__(self, url: str, log: Path | None = None):
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise SettingError("rollout.engines.server.url", f"{url} is no address", "give it as http://host:port")
        self.url, self.host, self.port = url, parts.hostname, parts.port
        self.hint = "" if log is None else f" (see {log})"

    def get(self, path: str, timeout: float | None = None) -> Any:
        return self._call("GET", path, None, timeout)

    def post(self, path: str, **body: Any) -> Any:
        """Waits for the reply as long as the server lives: generation takes its time."""
        return self._call("POST", path, json.dumps(body), None)

    def _call(self, method: str, path: str, body: str | None, timeout: float | None) -> Any:
        """Raises EngineDiedError where there is no answer, or one that is not a success."""
        connection = HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read().decode()
        except (OSError, HTTPException) as error:
            raise EngineDiedError(f"{self.url}{path}: {error or type(error).__name__}{self.hint}") from error
        finally:
            connection.close()
        if reply.status != 200:
            raise Refused(f"{self.url}{path}: {reply.status} {' '.join(text.split())[:200]}{self.hint}")
        return json.loads(text) if text else None
