"""JSON over HTTP with one vLLM server, both ends of which prove each word of theirs: see :mod:`oblr.rollout.proof`."""

import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from oblr.errors import EngineDiedError, GarbledError, SettingError, why
from oblr.rollout import proof
from oblr.rollout.waits import Waits

#: How long a host that is gone stays unnoticed while a reply is awaited: 30 s of silence, then 3 probes 10 s apart.
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
#: Seconds that a connection may take, and the answer to a question that needs no work.
CONNECT, QUICK = 10.0, 30.0
#: Bytes that an answer may have, if nobody expects more; and what of it is read at once.
LARGEST, PIECE = 64 * 2**20, 2**16


class Refused(EngineDiedError):
    """The server answered, but not with success: with another ``status``."""

    def __init__(self, line: str, status: int):
        super().__init__(line)
        self.status = status


class Limits(NamedTuple):
    """Of an answer: how long it may take, in seconds (None: until :meth:`Client.give_up`), and its bytes."""

    seconds: float | None
    size: int = LARGEST


class Session(NamedTuple):
    """What a client and a server that have greeted each other agree on, and the numbers of the requests to come."""

    name: str
    key: bytes
    numbers: Iterator[int]


class Client:
    """Calls of one server; may be used by several threads at once.

    Args:
        url: http://host:port.
        secret: what the server knows, too, and nobody else.
        log: what the server writes, if it is known.
        timeout: longest that one answer may take, where a call says nothing else, seconds.

    Attributes:
        run: which of all that know the secret gives the orders; see :meth:`claim`.

    Raises:
        SettingError: that is no such URL.
    """

    def __init__(self, url: str, secret: bytes, log: Path | None = None, timeout: float = 300.0):
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise SettingError("rollout.engines.server.url", f"{url} is no address", "give it as http://host:port")
        self.url, self.host, self.port = url, parts.hostname, parts.port
        self.address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self.secret, self.timeout, self.run = secret, timeout, ""
        self.hint = "" if log is None else f" (see {log})"
        self.waits = Waits(url, partial(self.get, "/health"))
        self.session: Session | None = None
        self.greeting = threading.Lock()
        self.claimed: HTTPConnection | None = None

    def get(self, path: str, timeout: float = QUICK) -> Any:
        return self._call("GET", path, None, timeout)

    def post(self, path: str, limits: Limits | None = None, /, **body: Any) -> Any:
        """An order; it is refused while another run has the server."""
        limits = limits or Limits(self.timeout)
        return self._call("POST", path, body, limits.seconds, limits.size)

    def text(self, path: str, timeout: float = QUICK) -> str:
        """What is no JSON."""
        return self._content("GET", path, b"", timeout, LARGEST).decode(errors="replace")

    def give_up(self, why: str) -> None:
        """Whatever is awaited is awaited no longer."""
        self.waits.stop(why)

    def claim(self, run: str) -> None:
        """Be the one whose orders the server takes, until :meth:`release` or this process's end.

        Raises:
            Refused: it takes those of another run.
        """
        self.release()
        self.run = run
        headers, number, key = self._signed("POST", proof.CLAIM, b"", QUICK)
        connection = self._connected(proof.CLAIM, QUICK)
        try:
            with self.waits.limited(connection.sock, QUICK) as wait:
                try:
                    connection.request("POST", proof.CLAIM, b"", headers)
                    reply = connection.getresponse()
                    body = b"" if reply.status == 200 else self._body(proof.CLAIM, reply, LARGEST)
                except (OSError, HTTPException) as error:
                    self._fail(proof.CLAIM, wait.over, error)
            self._check(proof.CLAIM, reply, number, key, body)
        except BaseException:
            connection.close()
            raise
        self.claimed = connection

    def release(self) -> None:
        """Leave the server to others."""
        if self.claimed is not None:
            if self.claimed.sock is not None:  # the answer that is still to come has a hold of it, too
                with suppress(OSError):
                    self.claimed.sock.shutdown(socket.SHUT_RDWR)
            self.claimed.close()
            self.claimed = None

    @property
    def taken(self) -> bool:
        """Whether a run has the server."""
        return self.get(proof.CLAIM) is True

    def _call(self, method: str, path: str, body: Any, timeout: float | None, most: int = LARGEST) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        return self._read(path, self._content(method, path, content, timeout, most))

    def _content(self, method: str, path: str, body: bytes, timeout: float | None, most: int) -> bytes:
        """Raises EngineDiedError where there is no answer in time, or one that is not a success or not the server's."""
        headers, number, key = self._signed(method, path, body, timeout)
        reply, content = self._exchange(method, path, body, headers, timeout, most)
        self._check(path, reply, number, key, content)
        return content

    def _signed(self, method: str, path: str, body: bytes, timeout: float | None) -> tuple[dict[str, str], str, bytes]:
        """Headers of a request, its number, and the key of its answer."""
        with self.greeting:
            session = self.session = self.session or self._greet(QUICK if timeout is None else min(QUICK, timeout))
        number, content = str(next(session.numbers)), proof.of_body(body)
        signed = proof.of_request(session.key, method, self.address, path, self.run, number, content)
        names = {proof.SESSION: session.name, proof.RUN: self.run, proof.COUNT: number, proof.BODY: content}
        return names | {proof.PROOF: signed}, number, session.key

    def _greet(self, timeout: float) -> Session:
        """Find out whether the one that answers knows the secret.

        Raises:
            GarbledError: it does not.
        """
        name = secrets.token_hex(16)
        reply, content = self._exchange("GET", proof.HELLO, b"", {proof.SESSION: name}, timeout, LARGEST)
        words = None
        if reply.status == 200:
            with suppress(GarbledError):
                words = self._read(proof.HELLO, content)
        epoch, proved = (words.get(name) if isinstance(words, dict) else None for name in ("epoch", "proof"))
        if not proof.same(str(proved), proof.greeting(self.secret, name, str(epoch))):
            raise GarbledError(
                f"{self.url} does not prove that it has this run's token: it is another server{self.hint}"
            )
        return Session(name, proof.key_of(self.secret, name, str(epoch)), count(1))

    def _connected(self, path: str, timeout: float | None) -> HTTPConnection:
        connection = HTTPConnection(self.host, self.port, timeout=CONNECT if timeout is None else min(CONNECT, timeout))
        try:
            connection.connect()
            connection.sock.settimeout(None)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError as error:
            connection.close()
            self._fail(path, "", error)
        return connection

    def _exchange(
        self, method: str, path: str, body: bytes, headers: dict[str, str], timeout: float | None, most: int
    ) -> tuple[HTTPResponse, bytes]:
        connection = self._connected(path, timeout)
        try:
            with self.waits.limited(connection.sock, timeout) as wait:
                try:
                    connection.request(method, path, body, headers | {"Content-Type": "application/json"})
                    reply = connection.getresponse()
                    content = self._body(path, reply, most)
                except (OSError, HTTPException) as error:
                    self._fail(path, wait.over, error)
                if wait.over:  # what was read ends where it was cut off
                    self._fail(path, wait.over)
                return reply, content
        finally:
            connection.close()

    def _fail(self, path: str, over: str, error: Exception | None = None) -> NoReturn:
        said = over if error is None else over or why(error)
        raise EngineDiedError(f"{self.url}{path}: {said}{self.hint}") from error

    def _body(self, path: str, reply: HTTPResponse, most: int) -> bytes:
        """Of an answer that has at most ``most`` bytes."""
        body = bytearray()
        while piece := reply.read(PIECE):
            body += piece
            if len(body) > most:
                raise GarbledError(f"{self.url}{path}: an answer of more than {most:,} bytes{self.hint}")
        if reply.length:  # http.client leaves it to us
            raise GarbledError(f"{self.url}{path}: an answer that lacks {reply.length:,} bytes{self.hint}")
        return bytes(body)

    def _check(self, path: str, reply: HTTPResponse, number: str, key: bytes, body: bytes) -> None:
        """Whether it is the server's answer, and a success."""
        text = " ".join(body[:1000].decode(errors="replace").split())[:200]
        proved = reply.headers.get(proof.PROOF, "")
        if not proof.same(proved, proof.of_reply(key, number, reply.status, proof.of_body(body))):
            self.session = None
            if reply.status == 401:  # it has been started again, and does not know the session
                raise EngineDiedError(f"{self.url}{path}: 401 {text}{self.hint}")
            raise GarbledError(f"{self.url}{path}: an answer that the server has not signed{self.hint}")
        if reply.status != 200:
            raise Refused(f"{self.url}{path}: {reply.status} {text}{self.hint}", reply.status)

    def _read(self, path: str, text: bytes) -> Any:
        """What the JSON ``text`` says; nothing where it is empty."""
        try:
            return json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse) if text else None
        except (ValueError, RecursionError) as error:
            raise GarbledError(f"{self.url}{path}: an answer that is no JSON: {why(error)}{self.hint}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        raise ValueError("an object has a name twice")
    return read


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
