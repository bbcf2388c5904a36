"""The guard before a server's routes, and the client, with an application of three lines in the server's place."""

import asyncio
import socket
import threading

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from oblr.errors import EngineDiedError, GarbledError, SettingError
from oblr.rollout import guard, proof
from oblr.rollout.client import Client, Limits, Refused
from oblr.rollout.guard import WINDOW, Guard, Numbers


@pytest.fixture
def served(tmp_path, monkeypatch):
    """(a function that makes clients, the application); what it is asked is counted."""
    token = tmp_path / "token"
    proof.make_secret(token)
    monkeypatch.setenv(proof.VARIABLE, str(token))
    app, app_asked = FastAPI(), []

    @app.api_route("/echo", methods=["GET", "POST"])
    async def echo(request: Request, size: int = 0):
        app_asked.append(request.url.path)
        return {"got": (await request.body()).decode(), "more": "x" * size}

    @app.post("/fails")
    async def fails():
        raise RuntimeError("out of order")

    app.exception_handler(Exception)(handled)
    app.add_middleware(Guard)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    url, clients = f"http://127.0.0.1:{listening.getsockname()[1]}", []

    def make(secret=None):
        clients.append(Client(url, secret or proof.read_secret(token), timeout=10.0))
        return clients[-1]

    yield make, app_asked
    for client in clients:
        client.release()
    server.should_exit = True
    thread.join()


async def handled(request: Request, error: Exception):
    return JSONResponse({"error": str(error)}, 500)


def test_who_knows_the_token_is_heard_and_answered(served):
    make, _ = served
    client = make()
    client.claim("a")
    assert client.post("/echo", b=1) == {"got": '{"b": 1}', "more": ""}
    assert client.get("/echo?size=3")["more"] == "xxx"
    assert len(client.get(f"/echo?size={2**20}")["more"]) == 2**20
    with pytest.raises(Refused, match=r"/fails: 500 .*out of order"):
        client.post("/fails")


def test_who_does_not_know_it_is_not(served):
    make, asked = served
    with pytest.raises(GarbledError, match="does not prove"):
        make(b"0" * 64).get("/echo")
    stranger = make(b"0" * 64)
    stranger.session = stranger._greet = None
    stranger._greet = lambda timeout: make()._greet(timeout)._replace(key=b"0" * 64)
    with pytest.raises(EngineDiedError, match="401 no proof of the server's token"):
        stranger.get("/echo")
    assert asked == []


def test_one_run_at_a_time(served):
    make, asked = served
    first, second, other_rank = make(), make(), make()
    with pytest.raises(Refused, match="409 no run has claimed it"):
        first.post("/echo")
    first.claim("a")
    other_rank.run = "a"
    assert other_rank.post("/echo")
    assert second.taken
    with pytest.raises(Refused, match="409 it serves another run"):
        second.claim("b")
    with pytest.raises(Refused, match="409 it serves another run"):
        second.post("/echo")
    assert second.get("/echo")  # questions are free
    first.claim("a")  # once more: the connection before is none of its own any longer
    assert first.post("/echo")
    first.release()
    while second.taken:
        pass
    second.claim("b")
    with pytest.raises(Refused, match="409"):
        other_rank.post("/echo")
    assert asked == ["/echo"] * 3


def test_more_than_was_agreed_is_not_read(served):
    make, _ = served
    client = make()
    client.claim("a")
    assert client.post("/echo", Limits(10.0, 100), b="x" * 30)
    with pytest.raises(GarbledError, match="more than 100 bytes"):
        client.post("/echo", Limits(10.0, 100), b="x" * 300)


def test_a_number_counts_once_however_late_it_comes():
    numbers = Numbers()
    assert all(numbers.take(number) for number in (1, 3, 2, 5))
    assert not any(numbers.take(number) for number in (1, 2, 3, 5))
    assert numbers.take(4)
    assert numbers.take(5 + 3 * WINDOW)
    assert not numbers.take(6)
    for number in range(5 + 3 * WINDOW + 1, 5 + 6 * WINDOW):
        numbers.take(number)
    assert len(numbers.seen) <= 2 * WINDOW
    assert not numbers.take(5 + 6 * WINDOW - 1)


def test_a_server_without_token_does_not_start(tmp_path, monkeypatch):
    monkeypatch.delenv(proof.VARIABLE, raising=False)
    with pytest.raises(SettingError, match=r"^rollout\.engines\.server\.token_file"):
        Guard(None)
    monkeypatch.setenv(proof.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(SettingError, match=r"^rollout\.engines\.server\.token_file"):
        Guard(None)


def test_parts_of_what_is_signed_cannot_be_cut_otherwise():
    assert proof.sign(b"k", "ab", "c") != proof.sign(b"k", "a", "bc")
    assert proof.of_reply(b"k", "1", 200, "x") != proof.of_request(b"k", "1", "200", "x", "", "", "")
    assert guard.PULSE < 300  # a way through other machines is kept open
