"""Stands before all routes of a vLLM server: who does not know its secret is not heard, and one run at a time is.

vLLM puts it there for ``--middleware oblr.rollout.guard.Guard``. Its own ``--api-key`` guards some routes alone, and
not those that replace weights. :mod:`oblr.rollout.proof` says what is proved.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

from oblr.rollout import proof

Message = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
#: Requests of a client that may overtake each other.
WINDOW = 1 << 16
#: Seconds between signs of life to the run that holds the server: a way there that is broken is found out.
PULSE = 60.0


class Numbers:
    """Which numbers a client's requests have had: none of them counts twice."""

    def __init__(self) -> None:
        self.last, self.seen = 0, set[int]()

    def take(self, number: int) -> bool:
        """Whether it is new."""
        if number in self.seen or number <= self.last - WINDOW:
            return False
        self.seen.add(number)
        self.last = max(self.last, number)
        if len(self.seen) > 2 * WINDOW:
            self.seen = {each for each in self.seen if each > self.last - WINDOW}
        return True


class Refusal(Exception):
    """Why a request is not answered."""


class Guard:
    """An ASGI application around vLLM's.

    Raises:
        SettingError: there is no secret in the file that ``OBLR_SERVER_TOKEN_FILE`` names.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]):
        self.app, self.secret = app, proof.read_secret(Path(os.environ.get(proof.VARIABLE, "")))
        self.epoch = secrets.token_hex(16)
        self.sessions: dict[str, Numbers] = {}
        #: the run that gives orders, and its latest claim
        self.holder, self.claim = "", object()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        session = given.get(proof.SESSION, "")
        if scope["path"] == proof.HELLO:
            words = {"epoch": self.epoch, "proof": proof.greeting(self.secret, session, self.epoch)}
            return await answer(send, 200, json.dumps(words).encode())
        key = proof.key_of(self.secret, session, self.epoch)
        run, count = given.get(proof.RUN, ""), given.get(proof.COUNT, "")
        try:
            self.check(scope, given, key)
            body = await whole(given[proof.BODY], receive)
        except Refusal as error:
            return await answer(send, 401, str(error).encode())

        async def signed(status: int, content: bytes, headers: list[tuple[bytes, bytes]]) -> None:
            told = proof.of_reply(key, count, status, proof.of_body(content))
            await answer(send, status, content, [*headers, (proof.PROOF.encode(), told.encode())])

        orders, claims = scope["method"] not in ("GET", "HEAD"), scope["path"] == proof.CLAIM
        if orders and (not run or self.holder not in ((run, "") if claims else (run,))):
            return await signed(409, b"it serves another run" if self.holder else b"no run has claimed it", [])
        if claims:
            if not orders:
                return await signed(200, json.dumps(bool(self.holder)).encode(), [])
            return await self.hold(run, receive, send, proof.of_reply(key, count, 200, proof.of_body(b"")))
        try:
            await self.app(scope, replayed(body, receive), collected(signed))
        except Exception as error:
            await self.failed(scope, receive, collected(signed), error)
            raise

    async def failed(self, scope: Message, receive: Receive, send: Send, error: Exception) -> None:
        """Give vLLM's own answer to what its routes fail of, which else came from outside this guard, unsigned."""
        handler = scope["app"].exception_handlers.get(Exception)
        if handler is None:
            return await answer(send, 500, f"{type(error).__name__}: {error}".encode())
        from starlette.requests import Request

        response = await handler(Request(scope), error)
        await response(scope, receive, send)

    def check(self, scope: Message, given: dict[str, str], key: bytes) -> None:
        """Raises Refusal where a request is not from somebody who knows the secret, or comes again."""
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        names = (proof.RUN, proof.COUNT, proof.BODY)
        run, count, body = (given.get(name, "") for name in names)
        expected = proof.of_request(key, scope["method"], given.get("host", ""), target, run, count, body)
        if not proof.same(given.get(proof.PROOF, ""), expected):
            raise Refusal("no proof of the server's token")
        if not self.sessions.setdefault(given[proof.SESSION], Numbers()).take(int(count)):
            raise Refusal("this was said before")

    async def hold(self, run: str, receive: Receive, send: Send, told: str) -> None:
        """The server is this run's for as long as the connection lives."""
        self.holder, claim = run, object()
        self.claim = claim
        try:
            headers = [(proof.PROOF.encode(), told.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while True:
                await send({"type": "http.response.body", "body": b".", "more_body": True})
                try:
                    async with asyncio.timeout(PULSE):
                        while (await receive())["type"] != "http.disconnect":
                            pass
                    return
                except TimeoutError:
                    continue
        finally:
            if self.claim is claim:  # the same run has not come back by another connection
                self.holder = ""


async def whole(told: str, receive: Receive) -> bytes:
    """The body of a request, which is to be as long as its head has ``told``."""
    size, body = int(told.partition("-")[0]), bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal("it was broken off")
        body += message.get("body", b"")
        if not message.get("more_body", False) or len(body) > size:
            break
    if proof.of_body(bytes(body)) != told:
        raise Refusal("its body is another")
    return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """What gives a body that has been read to who asks for it, and then what comes after it."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


def collected(done: Callable[[int, bytes, list[tuple[bytes, bytes]]], Awaitable[None]]) -> Send:
    """What takes an answer piece by piece and gives ``done`` status, whole body and headers."""
    start: Message = {}
    body = bytearray()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                framing = (b"content-length", b"transfer-encoding")
                headers = [(name, value) for name, value in start.get("headers", []) if name.lower() not in framing]
                await done(start["status"], bytes(body), headers)

    return send


async def answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or []), length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
