"""Attacks on the rollout server, on what it says, and on the ways between the processes of a run."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import hostile
import pytest
from lending import lent
from tampering import SPOILS

from oblr.batch.types import Sampling
from oblr.errors import EngineDiedError, GarbledError, SettingError
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.rollout import proof
from oblr.rollout.client import Client, Refused
from oblr.rollout.replies import ask
from oblr.rollout.server import ServerEngine

ROOT = Path(__file__).resolve().parents[2]
POCKET = ROOT / "models" / "pocket"
#: A run of seconds.
SMALL = (
    *("experiment=pocket", "rollout.engine=hf", "rollout.prompts_per_step=4", "rollout.max_new_tokens=24"),
    *("data.held_out.size=8", "~callbacks.summary"),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A real vLLM server that this process has claimed, and something in it that spoils what it is told to."""
    folder = tmp_path_factory.mktemp("server")
    patch = pytest.MonkeyPatch()
    patch.setenv("TAMPERING", str(folder / "tampering"))
    patch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    engine = ServerEngine(str(POCKET), "float32", 128, str(folder / "log"))
    place = engine.arguments.index("--middleware")
    engine.arguments[place:place] = ["--middleware", "tampering.Tamper"]
    engine.start()
    engine.sync(PolicyModel(load_model(str(POCKET), "float32"), 1.0).weights(), 1)
    engine.folder = folder
    yield engine
    engine.close()
    patch.undo()


def spoil(engine, kind, times):
    (engine.folder / "tampering").write_text(json.dumps([kind, times]))


def call(engine, method, path, body=None, **headers):
    """Somebody else's request: status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", engine.server.port, timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, text.decode()


# Who reaches the port and has no token.


ORDERS = {
    "overwrite weights": ("/update_weights", {"update_info": {"tensors": [], "data": ""}}),
    "begin an update": ("/start_weight_update", {}),
    "end an update": ("/finish_weight_update", {"weight_version": "666"}),
    "say that the weights are others": ("/update_weight_version", {"new_version": "666"}),
    "save the weights where it likes": (
        "/collective_rpc",
        {"method": "save_sharded_state", "kwargs": {"path": "/tmp/stolen", "pattern": None, "max_size": None}},
    ),
    "drop the cache": ("/reset_prefix_cache", {}),
    "put it to sleep": ("/sleep?level=2", {}),
    "pause it": ("/pause", {}),
    "sample": ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 2}}),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_a_stranger(engine, stopped, order):
    """Another user of the machine gives the server an order"""
    path, body = ORDERS[order]
    status, said = call(engine, "POST", path, json.dumps(body))
    assert (status, said) == (401, "no proof of the server's token")
    assert engine.server.get("/weight_info")["weight_version"] == "1"
    assert not Path("/tmp/stolen").exists()
    stopped(f"{status} {said}")


def test_every_route_of_a_server(engine, stopped):
    """Another user tries every route that the server has, by every method that it takes"""
    paths = engine.server.get("/openapi.json")["paths"]
    assert len(paths) > 30
    asked = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    asked += [
        ("GET", path) for path in ("/openapi.json", "/metrics", "/docs", "/ping", "/health", "/no/such", "//health")
    ]
    asked += [("OPTIONS", "/update_weights"), ("POST", proof.CLAIM), ("GET", proof.CLAIM)]
    answers = {call(engine, method, path.replace("{", "").replace("}", ""), b"{}") for method, path in asked}
    assert answers == {(401, "no proof of the server's token")}
    with socket.create_connection(("127.0.0.1", engine.server.port)) as connection:
        connection.sendall(
            b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b" 101 " not in connection.recv(1000).splitlines()[0]
    stopped(f"401 on each of {len(asked)} routes and methods; no websocket")


def signed(engine, method, path, body=b"{}"):
    """What a request of the run's own has for headers."""
    headers, _, _ = engine.server._signed(method, path, body, 30)
    return headers


def test_a_foreign_host(engine, stopped):
    """A page in the user's browser reaches the server under a name of its own (DNS rebinding)"""
    status, said = call(engine, "POST", "/collective_rpc", '{"method": "get_model"}', Host="evil.example")
    assert status == 401
    stolen = signed(engine, "POST", "/collective_rpc")
    assert call(engine, "POST", "/collective_rpc", "{}", **stolen, Host="evil.example")[0] == 401
    stopped(f"{status} {said}, whatever else the request has")


def test_guesses_of_the_token(engine, stopped):
    """Another user guesses tokens, and takes ways of saying one that other servers know"""
    for number in range(200):
        session = f"{number:032x}"
        key = proof.key_of(f"{number:064x}".encode(), session, json.loads(greeting(engine, session))["epoch"])
        address = f"127.0.0.1:{engine.server.port}"
        body = proof.of_body(b"")
        given = {proof.SESSION: session, proof.COUNT: "1", proof.BODY: body}
        given[proof.PROOF] = proof.of_request(key, "GET", address, "/health", "", "1", body)
        assert call(engine, "GET", "/health", **given)[0] == 401
    for header in (
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer None"},
        {proof.PROOF: ""},
        {proof.PROOF: "é"},
    ):
        assert call(engine, "GET", "/health", **{k: v.encode("latin-1") for k, v in header.items()})[0] == 401
    stopped("401 on each of 204 guesses; the token has 256 bits")


def greeting(engine, session):
    return call(engine, "GET", proof.HELLO, **{proof.SESSION: session})[1]


def test_a_request_that_is_said_again(engine, stopped):
    """Somebody on the way says a request of the run again, or with another body, path or number"""
    given = signed(engine, "POST", "/reset_prefix_cache")
    assert call(engine, "POST", "/reset_prefix_cache", "{}", **given)[0] == 200
    again = call(engine, "POST", "/reset_prefix_cache", "{}", **given)
    assert again == (401, "this was said before")
    for path, body, change in (
        ("/pause", "{}", {}),
        ("/reset_prefix_cache", "{ }", {}),
        ("/reset_prefix_cache", "{}", {proof.COUNT: "999999"}),
        ("/reset_prefix_cache", "{}", {proof.RUN: "other"}),
    ):
        given = signed(engine, "POST", "/reset_prefix_cache") | change
        assert call(engine, "POST", path, body, **given)[0] == 401
    stopped(again[1])


def test_where_the_token_could_be_seen(engine, stopped):
    """Another user looks for the token in the list of processes, in files, and at what the server listens on"""
    secret = engine.server.secret.decode()
    group = str(engine.process.process.pid)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert secret not in commands
    assert secret not in (engine.folder / "log").read_text()
    info = engine.server.get("/server_info")
    assert secret not in json.dumps(info)
    for place in (engine.process.token, engine.process.token.parent):
        assert place.stat().st_mode & 0o077 == 0
    pids = subprocess.run(["pgrep", "-g", group], capture_output=True, text=True).stdout.split()
    for pid in pids:
        assert secret not in Path("/proc", pid, "environ").read_text(errors="replace")
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True).stdout.splitlines()
    own = [line.split()[3] for line in listening if any(f"pid={pid}," in line for pid in pids)]
    assert own
    assert {address.rpartition(":")[0] for address in own} == {"127.0.0.1"}
    sockets = subprocess.run(["ss", "-Hlxp"], capture_output=True, text=True).stdout.splitlines()
    paths = [line.split()[4] for line in sockets if any(f"pid={pid}," in line for pid in pids)]
    assert paths
    assert all(path.startswith(f"{engine.process.token.parent}/") for path in paths)
    stopped("the token is in a file of mode 0600 in a folder of mode 0700, sockets as well; ports are on 127.0.0.1")


# Who takes the server's place, or wants it, too.


def test_an_impostor_on_the_port(tmp_path, stopped):
    """Another process has taken the port before the server, and greets whoever comes"""
    with hostile.Server(lambda path, body: {}, knows=False) as impostor:
        with pytest.raises(GarbledError, match="does not prove that it has this run's token") as caught:
            Client(impostor.url, impostor.secret).post("/update_weights", update_info={})
        assert impostor.heard == [proof.HELLO]  # not a word more
        token = impostor.write_token(tmp_path)
        with pytest.raises(SettingError, match=r"^rollout\.engines\.server\.token_file"):
            ServerEngine(str(POCKET), "float32", 128, "log", impostor.url, str(token))
        impostor.shutdown()
    stopped(caught.value)


def test_an_answer_that_is_changed_on_the_way(stopped):
    """Somebody on the way answers in the server's place"""
    with hostile.Server(lambda path, body: hostile.unsigned) as server:
        with pytest.raises(GarbledError, match="has not signed") as caught:
            Client(server.url, server.secret).get("/weight_info")
        server.shutdown()
    stopped(caught.value)


def test_a_second_run_on_the_server(engine, tmp_path, stopped):
    """A second run, and an evaluation, on a server that serves one, with its token"""
    settings = "rollout.engines.server"
    url = (f"{settings}.url={engine.server.url}", f"{settings}.token_file={engine.process.token}")
    run = script("train.py", *SMALL, "rollout.engine=server", *url, f"paths.output_dir={tmp_path / 'run'}")
    said = run.communicate(timeout=300)[1]
    assert run.returncode == 2, said
    (line,) = said.strip().splitlines()
    assert "serves another run (wait for its end, or start another server)" in line
    other = Client(engine.server.url, engine.server.secret)
    other.run = "other"
    with pytest.raises(Refused, match="409 it serves another run"):
        other.post("/update_weight_version", new_version="9")
    assert engine.server.get("/weight_info")["weight_version"] == "1"
    stopped(line)


def test_token_files_that_others_may_read(tmp_path, stopped):
    """The token file is open to other users, a link to nowhere, or empty"""
    for name, mode, text in (
        ("open", 0o644, "ab" * 32),
        ("group", 0o660, "ab" * 32),
        ("empty", 0o600, ""),
        ("é", 0o600, "x"),
    ):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(SettingError, match=r"^rollout\.engines\.server\.token_file: ") as caught:
            proof.secret_of(file)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SettingError, match=r"^rollout\.engines\.server\.token_file: "):
        proof.secret_of(tmp_path / "link")
    stopped(caught.value)


# What a server says that knows the token, and is broken or worse.


def sample(engine):
    tokenizer = load_tokenizer(str(POCKET))
    sampling = Sampling(8, 1.0, 64, (tokenizer.eos_token_id,))
    return ask(engine, [tokenizer.encode("12 + 3 =\n")] * 2, sampling, [1, 100], len(tokenizer))


@pytest.mark.parametrize("kind", SPOILS)
def test_what_was_not_asked_for(engine, stopped, kind):
    """The server's answer to a request for 8 responses is another"""
    right = sample(engine)
    spoil(engine, kind, 1)
    with pytest.raises(GarbledError) as caught:
        sample(engine)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert sample(engine) == right
    stopped(str(caught.value).partition("/v1")[2].partition("/generate: ")[2] or caught.value)


RAW = {
    "never an answer": (hostile.silent, "no answer within 1 s"),
    "a byte now and then": (hostile.trickle, "no answer within 1 s"),
    "a body without end": (hostile.endless, "an answer of more than 67,108,864 bytes"),
    "less than it says": (hostile.cut, "an answer that lacks 998 bytes"),
}


@pytest.mark.parametrize("kind", RAW)
def test_answers_that_do_not_end(stopped, kind):
    """The server accepts a request, and then there is"""
    answer, said = RAW[kind]
    with hostile.Server(lambda path, body: answer) as server:
        start = time.monotonic()
        with pytest.raises(EngineDiedError, match=said) as caught:
            Client(server.url, server.secret, timeout=1.0).post("/start_weight_update")
        assert time.monotonic() - start < 10
        server.shutdown()
    stopped(str(caught.value).partition("/start_weight_update: ")[2])


def test_a_server_that_never_samples(tmp_path, stopped):
    """The server answers whether it is well, and never what it is asked to sample"""
    answers = lambda path, body: hostile.silent if path == "/inference/v1/generate" else {}  # noqa: E731
    with hostile.Server(answers) as server:
        engine = ServerEngine(str(POCKET), "float32", 128, "log", silence_timeout=1.0)
        engine.client, engine.weight_version = Client(server.url, server.secret), 1
        with pytest.raises(EngineDiedError, match="has sampled nothing for 1 s") as caught:
            sample(engine)
        server.shutdown()
    stopped(caught.value)


def script(name, *overrides, **environment):
    """A run as a user starts it."""
    return subprocess.Popen(
        [sys.executable, f"src/{name}", *overrides],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_on(engine, folder, url, *more):
    small = [word for word in SMALL if word != "rollout.engine=hf"]
    settings = ("rollout.engine=server", "~callbacks.evaluation", f"paths.output_dir={folder}")
    return script("train.py", *small, *settings, *url, *more)


def test_a_run_whose_server_spoils_an_answer_goes_on(engine, tmp_path, stopped):
    """In the midst of a run the server gives seven responses instead of eight, once"""
    with lent(engine) as url:
        spoil(engine, "seven choices", 0)
        undisturbed = run_on(engine, tmp_path / "undisturbed", url, "steps=2")
        assert undisturbed.wait(300) == 0, undisturbed.stderr.read()
        spoil(engine, "seven choices", 1)
        run = run_on(engine, tmp_path / "run", url, "steps=2")
        out, error = run.communicate(timeout=300)
    assert run.returncode == 0, error
    (warning,) = [line for line in out.splitlines() if line.startswith("warning")]
    assert "step 1 is repeated" in warning
    assert "7 responses" in warning or "not 0 to 7" in warning
    one, other = ((tmp_path / name / "policy" / "model.safetensors").read_bytes() for name in ("undisturbed", "run"))
    assert one == other
    stopped(warning)


def test_a_run_whose_server_spoils_all_ends(engine, tmp_path, stopped):
    """The server gives tokens that the policy does not have, again and again"""
    with lent(engine) as url:
        spoil(engine, "token beyond the vocabulary", 10**6)
        run = run_on(engine, tmp_path / "run", url, "steps=2")
        out, error = run.communicate(timeout=300)
        spoil(engine, "token beyond the vocabulary", 0)
    assert run.returncode == 2, out
    (line,) = error.strip().splitlines()
    assert "token 1000000, which the policy does not have" in line
    assert out.count("is repeated") == 1
    stopped(line)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_while_a_server_is_silent(engine, tmp_path, stopped, number):
    """Ctrl-C or SIGTERM while the server does not answer, in the midst of the second step"""
    with lent(engine) as url:
        run = run_on(engine, tmp_path / "run", url, "steps=500", "callbacks.checkpoints.every=1")
        log, end = tmp_path / "run" / "checkpoints", time.monotonic() + 300
        while not any(log.glob("step-*.ckpt")) and time.monotonic() < end:
            time.sleep(0.05)
        group = engine.process.process.pid
        os.killpg(group, signal.SIGSTOP)
        try:
            time.sleep(2)  # the step under way is done but for what is awaited
            start = time.monotonic()
            run.send_signal(number)
            out, error = run.communicate(timeout=60)
            took = time.monotonic() - start
        finally:
            os.killpg(group, signal.SIGCONT)
    assert run.returncode == 128 + number, error
    assert took < 2
    line = next(line for line in (out + error).splitlines() if "does not answer" in line)
    assert "the last checkpoint is" in line
    stopped(line)


# The ranks of a run.


def test_ranks_meet_where_nobody_else_is(tmp_path, stopped):
    """The network reaches for the ports of a run's ranks"""
    overrides = (*SMALL, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "steps=400")
    run = script("train.py", *overrides, f"paths.output_dir={tmp_path / 'run'}")
    try:
        seen, end = set(), time.monotonic() + 200
        while not (tmp_path / "run" / "metrics.jsonl").exists() and len(seen) < 4 and time.monotonic() < end:
            pids = {
                str(run.pid),
                *subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split(),
            }
            lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True).stdout.splitlines()
            seen |= {line.split()[3] for line in lines if any(f"pid={pid}," in line for pid in pids)}
            time.sleep(0.2)
    finally:
        run.kill()
        run.communicate()
    assert len(seen) >= 3  # the store, and the ranks' own
    assert {address.rpartition(":")[0] for address in seen} == {"127.0.0.1"}
    stopped(f"{len(seen)} ports, all of them on 127.0.0.1")


def test_a_cache_of_compiled_code_in_everybodys_folder(tmp_path, stopped):
    """Another user puts code where torch would look for what it compiled: /tmp/torchinductor_USER"""
    code = (
        "from oblr.run.private import keep_caches; keep_caches(); import torch._inductor.runtime.cache_dir_utils as c"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(c.cache_dir())"],
        env=environment | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    place = Path(done.stdout.strip())
    assert place.is_relative_to(tmp_path / "oblr")
    assert (tmp_path / "oblr").stat().st_mode & 0o077 == 0
    (tmp_path / "oblr").chmod(0o777)
    again = subprocess.run(
        [sys.executable, "-c", f"{code}; print(c.cache_dir())"],
        env=environment | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"/oblr-\w+/torchinductor$", again.stdout.strip())
    stopped("what is compiled lies in a folder that the user alone may write to")
