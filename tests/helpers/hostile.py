"""Servers that know a token, and answer as a test says: as vLLM's would, or as none ever should."""

import json
import secrets
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from oblr.rollout import proof


class Server(ThreadingHTTPServer):
    """One on loopback.

    Args:
        answer: (path, body) -> what is sent, signed: JSON, or (status, bytes). It may also take all in its own hands:
            what can be called is, with the handler and what would be its proof of (status, bytes).
        knows: whether it knows the token.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer, knows=True, address=("127.0.0.1", 0)):
        super().__init__(address, Handler)
        self.answer, self.epoch = answer, "ab" * 16
        self.secret = secrets.token_hex(32).encode()
        self.own = self.secret if knows else secrets.token_hex(32).encode()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.heard: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def write_token(self, folder):
        path = folder / "token"
        path.touch(0o600)
        path.write_bytes(self.secret)
        return path

    def handle_error(self, request, client_address):
        """Whoever has hung up does not matter."""


class Handler(BaseHTTPRequestHandler):
    def speak(self):
        server, given = self.server, self.headers
        body = self.rfile.read(int(given.get("Content-Length", 0)))
        server.heard.append(self.path)
        session = given.get(proof.SESSION, "")
        if self.path == proof.HELLO:
            words = {"epoch": server.epoch, "proof": proof.greeting(server.own, session, server.epoch)}
            return self.send(200, json.dumps(words).encode())
        key = proof.key_of(server.own, session, server.epoch)

        def prove(status, content):
            return proof.of_reply(key, given[proof.COUNT], status, proof.of_body(content))

        if self.path == proof.CLAIM:
            if self.command == "GET":
                return self.send(200, b"false", prove(200, b"false"))
            self.send_response(200)
            self.send_header(proof.PROOF, prove(200, b""))
            self.end_headers()
            with suppress(OSError):
                self.connection.recv(1)
            return None
        answer = server.answer(self.path, json.loads(body) if body else {})
        if callable(answer):
            return answer(self, prove)
        status, content = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
        return self.send(status, content, prove(status, content))

    def send(self, status, content, proved=""):
        self.send_response(status)
        self.send_header(proof.PROOF, proved)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = speak

    def log_message(self, *_):
        """Nothing."""


def silent(handler, prove):
    """Never answers."""
    with suppress(OSError):
        handler.connection.recv(1)


def trickle(handler, prove):
    """Something every now and then, and no end."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while handler.wfile.write(b" ") and not _gone(handler.connection):
            handler.wfile.flush()


def _gone(connection):
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def endless(handler, prove):
    """A body without end, as fast as it is taken."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(bytes(2**20))


def cut(handler, prove):
    """Less than it says."""
    handler.send_response(200)
    handler.send_header(proof.PROOF, prove(200, b"{}"))
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{}")
    handler.connection.shutdown(socket.SHUT_RDWR)


def unsigned(handler, prove):
    """As somebody on the way who has no token."""
    handler.send(200, b"{}", "0" * 64)
