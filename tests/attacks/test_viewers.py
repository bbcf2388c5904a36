"""Text of models, data files and other runs, and secrets: what viewers, terminals and files make of them."""

import gzip
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.text.text_plugin import text_array_to_html
from tensorboard.util.tensor_util import make_ndarray

from callbacks.tensorboard import TensorBoard
from oblr.record.logger import RunRecord
from oblr.record.shown import Rows, show
from oblr.report.live import server
from oblr.report.page import write_report
from oblr.report.runs import read_run
from oblr.run.plain import verbatim
from oblr.run.terminal import print_error, print_warning, quiet_terminal, say

ROOT = Path(__file__).resolve().parents[2]
#: What Markdown, HTML, terminals and logs act on.
HOSTILE = [
    "![x](http://127.0.0.1:9/pixel.png)",
    "[click](javascript:alert(1)) <http://127.0.0.1:9/> https://127.0.0.1:9/",
    "[a]: http://127.0.0.1:9/ 'x'\n[a] ![a][a]",
    "<script>alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(1)><a href='http://127.0.0.1:9/'>x</a>",
    "```\n</code></pre>\n```\n![x](http://127.0.0.1:9/)\n````",
    "    four spaces\n\ttab\n# head\n> quote\n- item\n1. one\n***\n---\n===",
    "| a | b |\n|---|---|\n| ![x](http://127.0.0.1:9/) | \\| <img src=x> |",
    "\\![x](http://127.0.0.1:9/) \\\\[x](http://127.0.0.1:9/) &lt;img src=x&gt; &#60;img src=x&#62; &#x3c;script&#x3e;",
    "`a` `` b ` c `` **bold** __bold__ *em* _em_ ~~x~~",
    "a\u2028<img src=http://127.0.0.1:9/>\u2029b\x00c\x85d\u202eabc\u2066x\u200b\ufeff",
    "\x1b[2J\x1b[31mred\x1b]8;;http://127.0.0.1:9/\x07link\x1b]8;;\x07\x9b31m\r\nwarning     forged\nerror: forged",
    "![x](http://127.0.0.1:9/" + "y" * 100_000 + ")",
    "<!-- --><!--> <![CDATA[ <img src=x> ]]> <?php ?> <svg/onload=alert(1)>",
    "{: onclick=alert(1)} [^1] [TOC] +++ :smile: $x$",
    "\ud83d half",
]
ALLOWED = {"table", "thead", "tbody", "tr", "th", "td", "br", "p"}


class Seen(HTMLParser):
    """The elements of a piece of HTML, and the text of each cell of its tables."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self.cells = set[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.elements.add(tag)
        self.elements.update(name for name, _ in attributes if name != "style")
        if tag == "td":
            self.cells.append("")
        elif tag == "br":
            self.cells[-1] += "\n"

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def shown_by_tensorboard(folder: Path, rows: Rows) -> str:
    """A table as a run logs it and TensorBoard's text plugin makes HTML of it."""
    logger = TensorBoard(str(folder))
    logger.log_hyperparams({"eta0": 0.01})
    show(SimpleNamespace(loggers=[logger], is_global_zero=True, current_epoch=0), "rollout/samples", rows)
    logger.finalize("success")
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("rollout/samples/text_summary")
    return text_array_to_html(make_ndarray(event.tensor_proto), enable_markdown=True)


def test_tensorboard_renders_a_response(tmp_path, stopped):
    """Responses of links, remote images, HTML, fences, tables and marks of direction in TensorBoard's text plugin."""
    html = shown_by_tensorboard(tmp_path, Rows(("", "response"), [("best", text) for text in HOSTILE]))
    seen = Seen(html)
    assert seen.elements <= ALLOWED
    read = [cell.replace("\xa0", " ") for cell in seen.cells if len(cell) > 4 or cell.strip()]
    texts = [cell for cell in read if cell.strip() not in ("best", "response", "")]
    assert len(texts) == len(HOSTILE)
    for text, cell in zip(HOSTILE, texts, strict=True):
        expected = verbatim(text).expandtabs(4)
        assert [line.split() for line in cell.strip().split("\n")] == [
            line.split() for line in expected.strip().split("\n")
        ]
    stopped(f"{len(HOSTILE)} texts are text: the page has {', '.join(sorted(seen.elements))} and nothing else")


STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\u200b\ufeff]")


def test_text_that_steers_the_terminal(tmp_path, capfd, stopped):
    """Escape sequences and lines that look like ours, in what is said, warned of, logged and raised."""
    log = logging.getLogger("oblr.attack")
    with quiet_terminal(tmp_path / "train.log"), pytest.raises(RuntimeError):  # noqa: PT012
        for text in HOSTILE:
            say(f"said {text}")
            print_warning(f"warned {text}")
            print_error(f"raised {text}")
            log.warning("logged %s", text)
        with quiet_terminal(tmp_path / "other.log"):
            raise RuntimeError("\n".join(["2026-01-01 00:00:00,000 WARNING oblr.x: forged", *HOSTILE[:-1]]))
    out, err = capfd.readouterr()
    lines = [*out.splitlines(), *err.splitlines()]
    assert len(lines) == 5 * len(HOSTILE)
    ours = r"said |warning     (warned|logged) |error: raised |\d{4}-\S+ \S+ WARNING oblr.attack: logged "
    assert all(re.match(ours, line) for line in lines)
    assert not any(STEERING.search(line) for line in lines)
    traced = (tmp_path / "other.log").read_text()
    assert "RuntimeError: 2026-01-01" in traced
    assert not STEERING.search(traced.replace("\n", ""))
    forged = re.findall(r"^\S+ \S+ WARNING (?:oblr|callbacks)\S*: forged", traced, flags=re.MULTILINE)
    assert forged == []
    stopped(f"{len(lines)} lines, none of which has a control character, and none more than were said")


def test_ids_and_texts_of_a_data_file_steer_the_terminal(tmp_path, train, stopped):
    """A data file whose ids, problems and names forge warnings and clear the screen, in a run and in its errors."""
    evil = "\x1b[2J\nwarning     forged\r\u202e"
    path = tmp_path / "a\x1b[31m\nwarning     forged.jsonl"
    rows = [{"id": f"{evil}{i}", "problem": f"1+{i}={evil}", "answer": str(1 + i)} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    os.symlink(path, tmp_path / "twice.jsonl")
    os.symlink(path, tmp_path / "named.jsonl")
    own = ("data=local", f"data.path={tmp_path}/twice.jsonl", f"data.held_out_path={tmp_path}/twice.jsonl")
    done = train(*own, "reward=exact", "prompt=plain", "steps=1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "has the id" in line
    assert not STEERING.search(line)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"problem": "2+2=", "answer": "4"}) + "\n")
    own = (*own[:2], f"data.held_out_path={held}")
    done = train(*own, "reward=exact", "prompt=plain", "steps=1", "callbacks.progress.every=1")
    said = done.stdout.splitlines() + done.stderr.splitlines()
    assert not any(STEERING.search(line) for line in said)
    assert not any(line.startswith("warning     forged") for line in said)
    stopped(line)


# --- the report -------------------------------------------------------------------------------------------------------


def make_run(folder: Path, text: str, name: str = "train/reward") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"seed": 1, "data": {"path": text}}))
    told = {"command": ["src/train.py", text], "method": {text: text}, "told": {"seed": 1}}
    (folder / "run.json").write_text(json.dumps(told))
    resumed = {"resumed": {"after": 1, "changed": [text]}}
    (folder / "run-2.json").write_text(json.dumps(told | resumed))
    (folder / "train.log").write_text(f"2026-01-31 12:00:00,000 WARNING oblr.x: step 1: {' '.join(text.split())}\n")
    record = RunRecord(str(folder))
    for step in (1, 2, 3):
        record.log_metrics({name: 0.1, "train/lr": 0.1, text: 1.0}, step)
    row = {"group": 0, "response": 0, "live": True, "problem": text, "prompt": text, "answer": text, "text": text}
    row |= {"tokens": 1, "verdict": text, "reward": 1.0, "advantage": 1.0, "share": 1.0, "group_square": 1.0}
    (folder / "rollouts").mkdir()
    for step in (1, 2, 3):
        lines = gzip.compress((json.dumps(row) + "\n").encode())
        (folder / "rollouts" / f"step-{step:06d}-rank0.jsonl.gz").write_bytes(lines)
    return folder


TAKEN = (
    "</script><script>document.title='taken'</script><!--<script><img src=http://127.0.0.1:9/ "
    "onerror=\"document.title='taken'\">\u2028</title><svg/onload=document.title='taken'>"
)


@contextmanager
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


def test_a_report_of_a_hostile_run(tmp_path, stopped):
    """Responses, warnings, settings, commands, tags and names of runs that end scripts and load images, in Chromium."""
    folder = make_run(tmp_path / "<img src=x onerror=document.title=1>", TAKEN)
    page, requests = write_report(folder, [read_run(folder)]), []
    assert TAKEN[:20] not in page.read_text()
    with chromium() as browser:
        tab = browser.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(page.as_uri())
        tab.locator("details summary").first.click()
        tab.locator("td.text").first.wait_for()
        assert tab.title() == "OBLR-PO report"
        assert tab.locator("img, svg").count() == 0
        assert TAKEN[:40] in tab.locator("td.text").first.inner_text()
        assert "went on after step 1" in tab.locator("#warnings").inner_text()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    stopped("text is set as text")


def test_a_report_with_markup_that_has_come_through(tmp_path, stopped):
    """A page into which a script and an image have been put as if escaping had failed: neither is run or loaded."""
    folder = make_run(tmp_path / "run", "harmless")
    page, requests, refused = write_report(folder, [read_run(folder)]), [], []
    evil = (
        "<script>document.title = 'taken'</script><img src='http://127.0.0.1:9/x' onerror=\"document.title = 'taken'\">"
    )
    evil += "<script src='http://127.0.0.1:9/x.js'></script><iframe src='http://127.0.0.1:9/'></iframe>"
    page.write_text(page.read_text().replace("<main>", f"<main>{evil}"))
    with chromium() as browser:
        tab = browser.new_page()
        tab.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
        tab.on("response", lambda response: requests.append(response.url))
        tab.on("requestfailed", lambda request: refused.append(request.failure))
        tab.goto(page.as_uri())
        tab.locator("details summary").first.wait_for()
        assert tab.title() == "OBLR-PO report"
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert any("Content Security Policy" in text for text in refused)
    stopped(next(text for text in refused if "Content Security Policy" in text))


def asked(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_somebody_else_reads_what_is_followed(tmp_path, stopped):
    """Another user of the machine, another site's page and a name that leads here ask for a followed report."""
    folder = make_run(tmp_path / "run", "private words")
    with server([folder], port=0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        port, token = serving.server_port, serving.token
        assert serving.socket.getsockname()[0] == "127.0.0.1"
        assert asked(port, f"/{token}/")[0] == 200
        for path in (
            "/",
            "//",
            f"/{token[:-1]}/",
            f"/{token}x/",
            f"/x/{token}/",
            "/index.html",
            f"/{token}",
            "/*/",
        ):
            status, body = asked(port, path.encode().decode("latin-1"))
            assert (status, b"private words" in body) == (403, False), path
        for path in (f"/{token}/config.yaml", f"/{token}/../run/run.json", f"/{token}//etc/passwd", f"/{token}/?x"):
            status, body = asked(port, path)
            assert (status, b"private words" in body) == (404, False), path
        for host in (
            "elsewhere.example",
            f"elsewhere.example:{port}",
            "127.0.0.1",
            f"127.0.0.1.example:{port}",
            "localhost:1",
        ):
            assert asked(port, f"/{token}/", host)[0] == 403, host
        assert asked(port, f"/{token}/", method="POST")[0] == 501
        machine = socket.gethostbyname(socket.gethostname())
        if machine != "127.0.0.1":
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((machine, port), timeout=2)
        serving.shutdown()
    stopped("status 403: a token of 256 bits that the terminal alone was told, and names of this machine alone")


def test_the_token_is_in_no_process_list(tmp_path, stopped):
    """Another user of the machine reads the command lines and environments of all processes."""
    folder = make_run(tmp_path / "run", "x")
    command = [sys.executable, "src/report.py", str(folder), "--follow", "--port=0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[1]
        token = address.rstrip("/").rpartition("/")[2]
        assert len(token) > 40
        assert token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert token.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    stopped("the address is on the terminal alone")


# --- secrets, and what a run was made of ------------------------------------------------------------------------------

REWARD = """
class Reward:
    def __init__(self, token, password=None, endpoint="", fails=False):
        assert (token, password) == ({token!r}, {password!r}), f"told {{token}} and {{password}}"
        if fails:
            raise RuntimeError(f"no answer to {{token}}, {{password}}")

    def __call__(self, problem, text, completion):
        return float(len(text) % 2)
"""
TOKEN, PASSWORD = "hf_AbCdEfGhIjKlMnOpQr", "correct-horse-battery"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A reward of the user's that takes secrets, in a folder of its own."""
    mine = tmp_path / "mine"
    (mine / "conf" / "reward").mkdir(parents=True)
    (mine / "my_secrets.py").write_text(REWARD.format(token=TOKEN, password=PASSWORD))
    group = "_target_: my_secrets.Reward\ntoken: ${oc.env:MY_TOKEN}\npassword: null\nendpoint: null\nfails: false\n"
    (mine / "conf" / "reward" / "secretive.yaml").write_text(group)
    monkeypatch.setenv("PYTHONPATH", f"{mine}:{':'.join(sys.path)}")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    return mine


def everything(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            yield path, gzip.decompress(content) if path.suffix == ".gz" else content


def test_secrets_of_a_run(tmp_path, train, own, monkeypatch, stopped):
    """A token by ${oc.env:…}, a password and an address typed: in a run's files, on the screen, when it goes on."""
    given = ["reward=secretive", f"hydra.searchpath=[file://{own / 'conf'}]", "steps=1"]
    typed = [f"reward.password={PASSWORD}", f"reward.endpoint=https://me:{PASSWORD}@x.invalid/"]
    done = train(*given, *typed)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run"
    for path, content in everything(folder):
        assert TOKEN.encode() not in content, path
        assert PASSWORD.encode() not in content, path
    assert TOKEN not in done.stdout
    assert PASSWORD not in done.stdout
    assert "token: ${oc.env:MY_TOKEN}" in (folder / "config.yaml").read_text()
    for name in ("config.yaml", "run.json", "report.html", "train.log"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name
    again = [*given, "steps=2", "ckpt_path=last"]
    asked_for = train(*again)
    assert asked_for.returncode == 2
    (line,) = asked_for.stderr.splitlines()
    assert line.startswith("error: reward.password: ")
    monkeypatch.delenv("MY_TOKEN")
    missing = train(*again, *typed)
    assert missing.returncode == 2
    (of_environment,) = missing.stderr.splitlines()
    assert "MY_TOKEN" in of_environment
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    gone_on = train(*again, *typed)
    assert gone_on.returncode == 0, gone_on.stderr
    assert not any(TOKEN.encode() in content or PASSWORD.encode() in content for _, content in everything(folder))
    stopped(f"{line} {of_environment}")


def test_secrets_in_what_goes_wrong(tmp_path, train, own, stopped):
    """A reward that says the token and the password in the error that it fails with, and a setting that cannot work."""
    given = ["reward=secretive", f"hydra.searchpath=[file://{own / 'conf'}]", "steps=1", f"reward.password={PASSWORD}"]
    for fails in ("reward.fails=true", "steps=${oc.env:MY_TOKEN}"):
        done = train(*given, fails)
        assert done.returncode
        assert TOKEN not in done.stdout + done.stderr
        assert PASSWORD not in done.stdout + done.stderr
    assert not any(
        TOKEN.encode() in content or PASSWORD.encode() in content for _, content in everything(tmp_path / "run")
    )
    stopped(done.stderr.splitlines()[-1])


def test_data_and_reward_are_exchanged_while_a_run_rests(tmp_path, train, own, stopped):
    """Rows of the data file and lines of the reward are others when the run goes on."""
    data = tmp_path / "rows.jsonl"
    rows = [{"problem": f"1 + {i} =", "answer": str(1 + i)} for i in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = tmp_path / "held.jsonl"
    held.write_text('{"problem": "2 + 2 =", "answer": "4"}\n')
    given = ["reward=secretive", f"hydra.searchpath=[file://{own / 'conf'}]", f"reward.password={PASSWORD}"]
    given += ["data=local", f"data.path={data}", f"data.held_out_path={held}", "prompt=plain"]
    assert train(*given, "steps=1").returncode == 0
    rows[3]["answer"] = "5"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (own / "my_secrets.py").open("a") as file:
        file.write("\n# as if mended\n")
    done = train(*given, "steps=2", "ckpt_path=last")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("changed ")]
    assert [line.split()[1] for line in said] == ["steps:", "data:", "reward:"]
    folder = tmp_path / "run"
    resumed = json.loads((folder / "run-2.json").read_text())["resumed"]
    assert (resumed["after"], len(resumed["changed"])) == (1, 3)
    assert read_run(folder).resumed == [(1, resumed["changed"])]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("run/resumed/text_summary")
    assert event.step == 2
    seen = Seen(text_array_to_html(make_ndarray(event.tensor_proto), enable_markdown=True))
    assert [cell for cell in seen.cells if "rows.jsonl" in cell]
    stopped(" ".join(said[1:]))


FAILS = """
from lightning import Callback

class Fails(Callback):
    def on_train_batch_start(self, trainer, *_):
        raise RuntimeError("no memory")
"""


def test_a_finished_run_whose_resumption_fails_at_its_start(tmp_path, train, own, stopped):
    """A finished run goes on and fails in its first step: it stays finished, with every number and response."""
    (own / "my_callback.py").write_text(FAILS)
    given = ["callbacks.checkpoints.every=1", "callbacks.checkpoints.keep=3"]
    assert train(*given, "steps=3").returncode == 0
    folder = tmp_path / "run"
    before = dict(everything(folder))
    first = next(path for path in sorted((folder / "checkpoints").iterdir()) if path.name.startswith("step-00002"))
    failed = train("steps=4", f"ckpt_path={first}", "+callbacks.fails={_target_:my_callback.Fails}")
    assert failed.returncode
    assert "no memory" in failed.stderr + (folder / "train.log").read_text()
    after = dict(everything(folder))
    others = [path for path in before if after.get(path) != before[path] and path.name not in ("train.log", ".lock")]
    new = [path for path in after.keys() - before.keys() if "tfevents" not in path.name]
    assert (others, new) == ([], [])
    went_on = train("steps=4", f"ckpt_path={first}")
    assert went_on.returncode == 0, went_on.stderr
    assert json.loads((folder / "finished.json").read_text())["steps"] == 4
    assert (folder / "run-2.json").exists()
    stopped(f"{len(before)} files are as they were: what is finished stays so until an update is done")
