"""The report of a run: what is in it, that no response can do anything, and, in a real browser, what is shown."""

import base64
import csv
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cases import wide
from conftest import ROOT, SMALL, run_script
from step_statistics import Policy, Run, make_statistics

from callbacks.rollouts import RolloutLog
from oblr.commands import report
from oblr.errors import SettingError
from oblr.metrics.aggregate import interquartile_mean
from oblr.record.logger import RunRecord
from oblr.report import page
from oblr.report.comparison import TITLES
from oblr.report.live import server
from oblr.report.page import content, html, write_report
from oblr.report.pictures import draw, lines, write_pictures
from oblr.report.runs import differing, find_runs, read_run

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror='document.title = 1'>\u202e"
LONG = HOSTILE + "x" * 10**6
METHOD = {"baseline": "mean of the others", "learning rate": "η₀ = 0.01, as it was told"}


def make_run(folder: Path, seed: int = 1, steps: int = 4, text: str = "so it is 3", eta0: float = 0.01) -> Path:
    """A run folder without a run: two groups of two responses a step, the first of which says ``text``."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"seed: {seed}\neta0: {eta0}\npaths:\n  runs: {folder}\n")
    record = {"command": ["/clone/src/train.py", "experiment=pocket", "name=a b"], "method": METHOD}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "finished.json").write_text("{}")
    (folder / "train.log").write_text(
        "2026-01-31 12:00:00,000 WARNING callbacks.monitors: step 3: the entropy has collapsed\n"
        "2026-01-31 12:00:00,000 WARNING vllm: nobody needs to know\n"
    )
    record, log, trainer = RunRecord(str(folder)), RolloutLog(str(folder / "rollouts")), Run()
    trainer.current_epoch = 0
    log.on_train_start(trainer, None)
    for step in range(steps):
        record.log_metrics({"train/reward": 0.1 * step + seed + 10 * eta0 * seed, "train/lr": eta0}, step + 1)
        report = make_statistics()
        object.__setattr__(report.batch.rollouts[0], "text", text)
        trainer.current_epoch = step
        log.on_step(trainer, Policy(), report)
    return folder


def data_of(text: str) -> dict:
    """What the page's script reads."""
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found)


def test_a_page_of_one_run(tmp_path):
    folder = make_run(tmp_path / "run")
    path = write_report(folder, [read_run(folder)])
    shown = data_of(path.read_text())
    (run,) = shown["runs"]
    assert shown["curves"]["train/reward"] == [[0, [1, 2, 3, 4], pytest.approx([1.1, 1.2, 1.3, 1.4])]]
    assert run["warnings"] == [[3, "step 3: the entropy has collapsed"]]
    assert run["settings"] == {"seed": 1, "eta0": 0.01}
    assert shown["meanings"]["train/lr"].startswith("η_t")
    assert shown["names"]["train/reward"] == "training reward"
    assert (run["command"], run["method"]) == ("python src/train.py experiment=pocket 'name=a b'", METHOD)
    (of_rank,) = run["steps"]["3"]["ranks"]
    assert run["steps"]["3"]["numbers"] == {"train/reward": pytest.approx(1.3), "train/lr": 0.01}
    responses = [json.loads(line) for line in gzip.decompress(base64.b64decode(of_rank)).splitlines()]
    assert responses[0]["text"] == "so it is 3"
    assert len(responses) == 4
    with (folder / "report.csv").open() as file:
        lines = list(csv.DictReader(file))
    written = [float(line["value"]) for line in lines if line["tag"] == "train/reward"]
    assert written == shown["curves"]["train/reward"][0][2]


def test_a_page_needs_nothing_and_runs_nothing_of_a_response(tmp_path):
    """Nor of what else a run has from a model, such as a warning that quotes one."""
    folder = make_run(tmp_path / "run", text=LONG)
    with (folder / "train.log").open("a") as log:
        log.write(f"2026-01-31 12:00:00,000 WARNING callbacks.scoring: step 2: {HOSTILE}\n")
    text = html([read_run(folder)])
    assert HOSTILE[:30] not in text
    assert data_of(text)["runs"][0]["warnings"][-1] == [2, f"step 2: {HOSTILE}"]
    assert len(text) < 10**6
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert not re.search(r"<!-- [\w.]+ -->", text)
    assert (path := write_report(folder, [read_run(folder)])).stat().st_mode & 0o777 == 0o600, path
    assert "@import" not in text
    assert data_of(text)["runs"][0]["name"] == "run"


def test_several_runs_and_what_differs(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / f"seed{seed}", seed)
    runs = find_runs([tmp_path])
    assert [run.name for run in runs] == ["seed1", "seed2"]
    assert differing(runs) == ["seed"]
    assert [run["configuration"] for run in content(runs)["runs"]] == [[], []]


def test_what_comes_with_a_choice_is_not_told_besides_it(tmp_path):
    """Runs of another rate under one schedule are others, and so are those of a setting that mostly follows."""
    for name, told in {
        "a": {"seed": 1, "schedule": "snr", "schedule.decay": 0.9},
        "b": {"seed": 2, "schedule": "snr", "schedule.decay": 0.9},
        "c": {"seed": 1, "schedule": "constant", "schedule.lr": 0.1},
        "d": {"seed": 1, "schedule": "constant", "schedule.lr": 0.2},
        "e": {"seed": 1, "schedule": "snr", "schedule.decay": 0.9, "data.seed": 7},
    }.items():
        folder = make_run(tmp_path / name, told["seed"])
        (folder / "run.json").write_text(json.dumps({"told": told}))
        (folder / "config.yaml").write_text(
            f"seed: {told['seed']}\nschedule: {{lr: {told.get('schedule.lr', 'null')}}}\n"
        )
    runs = find_runs([tmp_path])
    assert differing(runs) == ["seed", "schedule", "schedule.lr", "data.seed"]
    assert differing(runs[:2]) == ["seed"]
    (tmp_path / "a" / "run.json").write_text("{}")
    assert differing(find_runs([tmp_path / "a", tmp_path / "d"])) == ["schedule"]
    assert differing(runs[1:3]) == ["seed", "schedule"]
    rows = content(runs)["comparison"]
    assert [row["configuration"] for row in rows][:3] == [
        ["snr", None, None],
        ["constant", 0.1, None],
        ["constant", 0.2, None],
    ]
    assert [row["seeds"] for row in rows][:3] == [2, 1, 1]


def test_configurations_are_compared_on_the_same_seeds(tmp_path):
    """Rewards over the run are 0.15 + 1.1 s at the one rate and 0.15 + 1.2 s at the other, at seed s."""
    for eta0, seeds in ((0.01, range(1, 9)), (0.02, range(2, 9))):
        for seed in seeds:
            make_run(tmp_path / f"rate{eta0}-seed{seed}", seed, eta0=eta0)
    (tmp_path / "rate0.02-seed8" / "finished.json").unlink()
    first, second = content(find_runs([tmp_path]))["comparison"]
    assert (first["configuration"], first["seeds"], first["against"]) == ([0.01], 8, {})
    assert (second["configuration"], second["seeds"]) == ([0.02], 6)
    assert first["columns"]["reward over the run"]["mean"] == pytest.approx(0.15 + 1.1 * 4.5)
    difference = second["against"]["reward over the run"]
    assert difference["mean"] == pytest.approx(0.1 * np.mean([2, 3, 4, 5, 6, 7]))
    assert difference["p_value"] == pytest.approx(2 / 2**6, rel=0.15)
    assert 0 < difference["low"] < difference["mean"] < difference["high"]


def test_of_few_seeds_no_tie_is_excluded(tmp_path):
    for eta0 in (0.01, 0.02):
        for seed in (1, 2):
            make_run(tmp_path / f"rate{eta0}-seed{seed}", seed, eta0=eta0)
    _, second = content(find_runs([tmp_path]))["comparison"]
    difference = second["against"]["reward over the run"]
    assert (difference["low"], difference["high"]) == (None, None)
    assert difference["p_value"] == pytest.approx(0.5, rel=0.1)


def test_pictures_show_the_curves_of_one_run_and_means_and_bands_of_several(tmp_path):
    for eta0 in (0.01, 0.02):
        for seed in (1, 2):
            make_run(tmp_path / f"rate{eta0}-seed{seed}", seed, eta0=eta0)
    runs = find_runs([tmp_path])
    written = write_pictures(tmp_path, runs)
    assert [path.name for path in written] == ["report-reward.png", "report-learning-rate.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    found = list(lines(runs, ["train/reward"]))
    assert [(label, len(curves)) for label, curves in found] == [("eta0=0.01", 2), ("eta0=0.02", 2)]
    (axes,) = draw("reward", "train/reward", found).axes
    first, second = (line.get_xydata().tolist() for line in axes.lines)
    assert first[0] == [1, pytest.approx((1.1 + 2.2) / 2)]
    assert second[3] == [4, pytest.approx((1.5 + 2.7) / 2)]
    low, high = axes.collections[0].get_datalim(axes.transData).intervaly
    assert (low, high) == pytest.approx((1.1, 2.5))
    assert [label for label, _ in lines(runs[:1], ["train/reward", "train/lr"])] == ["training reward", "learning rate"]


@pytest.mark.wide
def test_the_report_does_not_depend_on_the_logger(tmp_path):
    """But for what it costs: how long things took, and the logger's own settings."""
    small = ("rollout.engine=hf", "rollout.prompts_per_step=2", "rollout.group_size=2", "data.held_out.size=2")
    shown = []
    for logger in ("csv", "none"):
        folder = tmp_path / logger / "run"
        result = run_script(
            "train.py", "experiment=pocket", *small, "steps=2", f"logger={logger}", f"paths.output_dir={folder}"
        )
        assert result.returncode == 0, result.stderr
        data = data_of((folder / "report.html").read_text())
        (run,) = data["runs"]
        kept = {tag for tag in run["last"] if not tag.startswith(("time/", "throughput/"))}
        assert len(kept) > 30
        assert len(kept & data["curves"].keys()) > 20
        for found in (run["last"], data["curves"], *(step["numbers"] for step in run["steps"].values())):
            for tag in found.keys() - kept:
                del found[tag]
        del run["took"]
        run["settings"] = {path: value for path, value in run["settings"].items() if str(folder) not in str(value)}
        run["settings"] = {path: value for path, value in run["settings"].items() if not path.startswith("logger")}
        assert f"logger={logger}" in run.pop("command")
        assert (tmp_path / logger / "run" / "csv").exists() == (logger == "csv")
        shown.append(json.dumps(data))
    assert shown[0] == shown[1]


def test_what_is_no_run(tmp_path):
    with pytest.raises(SettingError, match="holds no run"):
        find_runs([tmp_path])
    done = run_script("report.py", str(tmp_path / "nosuch"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: runs: {tmp_path}/nosuch is no folder")


@pytest.mark.parametrize("devices", wide([], ["trainer=ddp", "trainer.devices=2"]))
def test_runs_that_are_started_together_have_one_report(tmp_path, devices):
    """``train.py -m``, as the page on watching promises: each run has its own besides, of as many processes."""
    small = [override for override in SMALL if not override.startswith("steps=")]
    done = run_script("train.py", "-m", *small, *devices, "steps=1", "seed=1,2", f"paths.runs={tmp_path}")
    assert done.returncode == 0, done.stderr
    shown = data_of((tmp_path / "report.html").read_text())
    assert [run["settings"]["seed"] for run in shown["runs"]] == [1, 2]
    assert shown["differs"] == ["seed"]
    assert len(list(tmp_path.glob("*/report.html"))) == 2
    assert done.stdout.splitlines()[-1] == f"report      {tmp_path}/report.html"


def test_what_has_logged_nothing_is_left_out_of_a_group(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "b", steps=2)
    for name, files in {"a": ["config.yaml"], "c": ["config.yaml", "run.json", "metrics.jsonl"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    (tmp_path / "c" / "metrics.jsonl").write_text('{"step": 0, "train/rew')  # killed while it wrote
    monkeypatch.setattr(sys, "argv", ["report.py", str(tmp_path)])
    report.main()
    *left, page = capsys.readouterr().out.splitlines()
    assert left == [f"left out    {tmp_path / name}: it has logged nothing" for name in "ac"]
    assert page == f"report      {tmp_path / 'report.html'}"
    assert [run.name for run in find_runs([tmp_path])] == ["b"]


@contextmanager
def followed(folder: Path) -> Iterator[str]:
    """The address at which the real script shows the runs of a folder."""
    command = [sys.executable, "src/report.py", str(folder), "--follow", "--port=0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=300) == ("", "")
        assert process.returncode == 0


def asked(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_what_is_followed_is_the_page_and_nothing_else(tmp_path):
    folder = make_run(tmp_path / "run")
    with server([folder], port=0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        assert serving.server_address[0] == "127.0.0.1"
        address, open_ = serving.address, f"http://127.0.0.1:{serving.server_port}/"
        assert asked(address) == (200, html([read_run(folder)]))
        assert asked(address + "config.yaml")[0] == 404
        assert asked(address + "../run/config.yaml")[0] == 404
        assert asked(address, Host="elsewhere.example")[0] == 403
        assert asked(address, Host="127.0.0.1.elsewhere.example")[0] == 403
        assert [asked(open_ + path)[0] for path in ("", "x/", serving.token[:-1] + "/")] == [403, 403, 403]
        RunRecord(str(folder)).log_metrics({"train/reward": 7.0}, 4)
        assert data_of(asked(address)[1])["curves"]["train/reward"][0][2][-1] == 7
        serving.shutdown()


@pytest.fixture
def opened():
    """Opens a page in Chromium. In the end nothing has gone wrong in it, and it has asked for nothing."""
    from playwright.sync_api import sync_playwright

    problems, requests = [], []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])

        def opened(path, **options):
            # to look inside, Playwright evaluates text; what the policy forbids is tried in attacks/test_viewers.py
            tab = browser.new_page(bypass_csp=True, **options)
            tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            tab.on("pageerror", lambda error: problems.append(str(error)))
            tab.on("request", lambda request: requests.append(request.url))
            tab.goto(path if isinstance(path, str) else path.as_uri())
            return tab

        yield opened
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))] == []


def unreadable(tab) -> list[str]:
    """What axe finds that some people cannot see, read or reach."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab).response["violations"]
    return [f"{rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]]


@pytest.mark.browser
def test_in_a_browser(tmp_path, opened):
    """Charts, a step, its groups and their responses, by mouse and by keyboard."""
    tab = opened(write_report(tmp_path, [read_run(make_run(tmp_path / "run", text=LONG))]))
    assert tab.title() == "OBLR-PO report"
    assert tab.locator("figure canvas").count() == 2
    tab.wait_for_selector("details")
    assert tab.locator("#step").inner_text() == "1"
    hostile = tab.locator("details[data-group='0']")
    hostile.locator("summary").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("td.text")
    assert hostile.locator("tr").count() == 3
    assert hostile.locator("td.text div").first.inner_text().startswith("</script><script>document.title")
    chart = tab.locator("figure").first.locator(".u-over")
    chart.click(position={"x": chart.bounding_box()["width"] - 3, "y": 50})
    tab.wait_for_function("document.getElementById('step').textContent === '4'")
    tab.locator("#before").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_function("document.getElementById('step').textContent === '3'")
    assert "training reward 1.3" in tab.locator("#numbers").inner_text()
    assert tab.url.endswith("#step=3")
    tab.locator("#slider").focus()
    tab.keyboard.press("Home")
    tab.wait_for_function("document.getElementById('step').textContent === '1'")
    assert tab.locator("#warnings li").all_inner_texts() == ["step 3: the entropy has collapsed"]
    tab.locator("#warnings button").press("Enter")
    tab.wait_for_function("document.getElementById('step').textContent === '3'")
    assert tab.locator("#comparison").is_hidden()
    assert tab.title() == "OBLR-PO report"


def make_step(folder: Path, step: int, parts: list[list[float]]) -> None:
    """Responses of a step: of each group the lengths of their parts in the gradient, a minus for what becomes rarer."""
    total = sum(abs(part) for group in parts for part in group)
    rows = [
        {
            **{
                "group": q,
                "response": i,
                "live": any(group),
                "problem": f"{q}",
                "prompt": f"prompt {q}",
                "answer": "1",
            },
            **{"text": f"text {q} {i}", "tokens": 3, "verdict": "scored", "reward": float(part > 0), "advantage": part},
            **{"share": abs(part) / total if any(group) else None, "group_square": sum(group) ** 2},
        }
        for q, group in enumerate(parts)
        for i, part in enumerate(group)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rollouts" / f"step-{step:06d}-rank1.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


@pytest.mark.browser
def test_what_moved_a_step_is_seen_at_once(tmp_path, opened):
    """Its ten largest updates, prompts by their gradients, and colours by shares of the whole step."""
    folder = make_run(tmp_path / "run")
    parts = [[0, 0, 0, 0], [1, -2, 3, -4], [5, 6, 7, 8], [9, -10, 11, 12]]
    make_step(folder, 2, parts)
    tab = opened(f"{write_report(tmp_path, [read_run(folder)]).as_uri()}#step=2")
    tab.wait_for_selector("#largest li")
    texts = [
        f"text {q} {i}" for q, i in ((3, 3), (3, 2), (3, 1), (3, 0), (2, 3), (2, 2), (2, 1), (2, 0), (1, 3), (1, 2))
    ]
    assert tab.locator("#largest .said").all_inner_texts() == texts
    together = sum(range(3, 13)) / sum(range(1, 13))
    assert f"Together {100 * together:.3g} % of the step's update" in tab.locator("#of-moved").inner_text()
    assert "15.4 % of the update" in tab.locator("#largest li").first.inner_text()  # 12 of 78
    assert tab.locator("details").evaluate_all("all => all.map(one => one.dataset.group)") == ["2", "3", "1", "0"]
    for box in tab.locator("details summary").all():
        box.click()
    tab.wait_for_function("document.querySelectorAll('td.text').length === 16")
    read = "rows => rows.map(row => [row.querySelector('td.text').innerText, getComputedStyle(row).backgroundColor])"
    colours = dict(tab.locator("details tr:has(td)").evaluate_all(read))
    strengths = {text: float(re.findall(r"[\d.]+", colour)[3]) for text, colour in colours.items()}
    for q, group in enumerate(parts):
        for i, part in enumerate(group):
            assert strengths[f"text {q} {i}"] == pytest.approx(0.4 * abs(part) / 12, abs=0.005)
    greens = {text for text, colour in colours.items() if strengths[text] and colour.startswith("rgba(26, 127, 55")}
    assert greens == {f"text {q} {i}" for q, group in enumerate(parts) for i, part in enumerate(group) if part > 0}
    shares = tab.locator("td[data-title='share of the update']").all_inner_texts()
    assert sum(float(text.split()[0]) for text in shares if "%" in text) == pytest.approx(100, abs=0.5)
    tab.locator("#largest button").nth(8).press("Enter")
    assert tab.evaluate("document.activeElement.textContent").endswith("prompt 1")


@pytest.mark.browser
def test_a_step_has_an_address(tmp_path, opened):
    """It leads to its step, follows who reads on, and says so where that step is not on the page."""
    for seed in (1, 2):
        make_run(tmp_path / f"seed{seed}", seed)
    alone = write_report(tmp_path / "seed1", [read_run(tmp_path / "seed1")]).as_uri()
    tab = opened(f"{alone}#step=3")
    tab.wait_for_function("document.getElementById('step').textContent === '3'")
    tab.locator("#after").click()
    tab.wait_for_function("location.hash === '#step=4'")
    tab.evaluate("location.hash = '#step=2'")
    tab.wait_for_function("document.getElementById('step').textContent === '2'")
    assert tab.locator("#nearest").inner_text() == ""
    tab.evaluate("location.hash = '#step=99'")
    tab.wait_for_function("document.getElementById('step').textContent === '4'")
    assert "step 99" in tab.locator("#nearest").inner_text()
    both = write_report(tmp_path, find_runs([tmp_path])).as_uri()
    tab = opened(f"{both}#run=seed2&step=3")
    tab.wait_for_function("document.getElementById('numbers').textContent.includes('training reward 2.4')")
    tab.locator("#before").click()
    tab.wait_for_function("location.hash === '#run=seed2&step=2'")
    for wrong in ("#step=x", "#nosuch", "#step=-1"):
        tab = opened(f"{alone}{wrong}")
        tab.wait_for_function("document.getElementById('step').textContent === '1'")


@pytest.mark.browser
def test_on_a_phone_text_comes_first(tmp_path, opened):
    path = write_report(tmp_path, [read_run(make_run(tmp_path / "run", text="word " * 300))])
    tab = opened(path, viewport={"width": 360, "height": 800})
    tab.wait_for_selector("#largest .said")
    top = "selector => document.querySelector(selector).getBoundingClientRect().top + scrollY"
    assert tab.evaluate(top, "#largest .said") < 800
    tab.locator("details summary").first.click()
    tab.wait_for_selector("td.text")
    tops = [tab.evaluate(top, selector) for selector in ("td.text", "td.n", "#curves figure", "#settings")]
    assert tops == sorted(tops)
    widths = "all => all.map(one => one.scrollWidth - one.clientWidth)"
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert set(tab.locator(".group, td.text, #largest li").evaluate_all(widths)) == {0}
    tab.set_viewport_size({"width": 1200, "height": 800})
    tab.wait_for_function("by('curves').compareDocumentPosition(by('one')) & Node.DOCUMENT_POSITION_FOLLOWING")


@pytest.mark.browser
def test_the_page_says_what_a_run_was(tmp_path, opened):
    """Command, method in words, final figures and duration; a rate with what governs it; and no tag as a legend."""
    folder = make_run(tmp_path / "run", steps=3)
    record = RunRecord(str(folder))
    for done, (low, mean, high) in ((0, (0.1, 0.2, 0.3)), (3, (0.7, 0.8, 0.9))):
        figures = {"eval/sampled_accuracy": mean, "eval/sampled_low": low, "eval/sampled_high": high}
        record.log_metrics(figures, done)
    for step in (1, 2, 3):
        record.log_metrics({"time/step": 40.0, "train/lr": 0.01}, step)
    tab = opened(write_report(tmp_path, [read_run(folder)]))
    tab.wait_for_selector("details")
    header = tab.locator("header").inner_text()
    for words in (
        "python src/train.py experiment=pocket 'name=a b'",
        *METHOD.values(),
        "3 steps in 2 min 0 s, 40 s a step",
    ):
        assert words in header
    assert "held-out accuracy, sampled 0.8 [0.7, 0.9] after step 3" in header
    held_out = tab.locator("figure[data-chart='held-out accuracy'] canvas")
    assert held_out.count() == 1
    assert tab.evaluate("data.curves['eval/sampled_accuracy'][0][1]") == [0, 3]
    assert (
        tab.locator("figure[data-chart='learning rate'] h3").inner_text() == f"learning rate: {METHOD['learning rate']}"
    )
    legends = tab.locator(".u-legend th").all_inner_texts()
    assert legends
    assert [text for text in legends if "/" in text or "_" in text] == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("seeds", [1, 2], ids=["one", "several"])
def test_everybody_can_read_it(tmp_path, opened, scheme, seeds):
    """With any group of responses open, on a screen and on a phone."""
    for seed in range(seeds):
        make_run(tmp_path / f"seed{seed}", seed)
    path = write_report(tmp_path, find_runs([tmp_path]))
    for width in (1200, 380):
        tab = opened(path, color_scheme=scheme, viewport={"width": width, "height": 900})
        tab.locator("details summary").first.click()
        tab.wait_for_selector("td.text")
        assert unreadable(tab) == []
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.browser
def test_a_run_under_way_is_followed(tmp_path, opened):
    """The page goes on with the run, but not under the eyes of who reads a group; elsewhere nobody can read it."""
    folder = make_run(tmp_path / "run")
    with followed(folder) as address:
        tab = opened(address)
        tab.wait_for_selector("details")
        RunRecord(str(folder)).log_metrics({"train/reward": 7.0}, 4)
        tab.wait_for_function("data.curves['train/reward'][0][2].at(-1) === 7")
        tab.wait_for_selector("details")
        tab.locator("details summary").first.click()
        RunRecord(str(folder)).log_metrics({"train/reward": 8.0}, 5)
        tab.locator("#newer").click()
        tab.wait_for_function("data.curves['train/reward'][0][2].at(-1) === 8")
        tab.close()  # it looks for what is new, and who would answer ends


@pytest.mark.browser
def test_several_in_a_browser(tmp_path, opened):
    """A line and a band a configuration, and figures that are the record's."""
    for eta0 in (0.01, 0.02):
        for seed in range(1, 8):
            make_run(tmp_path / f"rate{eta0}-seed{seed}", seed, eta0=eta0)
    tab = opened(write_report(tmp_path, find_runs([tmp_path])))
    assert tab.locator("#runs li").all_inner_texts() == ["eta0=0.01 (7 runs)", "eta0=0.02 (7 runs)"]
    first, second = tab.locator("#rows tr").all()[1:]
    mean, low, high = interquartile_mean([0.15 + 1.1 * seed for seed in range(1, 8)])
    assert first.inner_text().split() == ["0.01", "7", f"{mean:.4g}", f"[{low:.4g},", f"{high:.4g}]"]
    assert re.fullmatch(r"4.95 \[.*\]\n\+0.4 \[.*\], p = 0.01\d+: no tie", second.locator("td").nth(2).inner_text())
    tab.locator("#run").select_option("rate0.02-seed7")
    tab.wait_for_function("document.getElementById('numbers').textContent.includes('training reward 8.4')")
    shown = [row.locator("th, td").all_inner_texts() for row in tab.locator("#settings tr").all()[1:]]
    assert [path for path, *_ in shown] == ["eta0", "seed"] or [path for path, *_ in shown] == ["seed", "eta0"]


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_sweeps_report(tmp_path, opened, scheme):
    """A real one, with figures as in its CSV; one of its responses, by keyboard; and everybody can read it."""
    swept = ("experiment=sweep", "baseline=rloo,gradient_weighted", "schedule=snr,constant", "seed=1,2")
    small = [override for override in SMALL if not override.startswith("experiment=")]
    done = run_script("sweep.py", *swept, *small, "steps=2", f"paths.runs={tmp_path}")
    assert done.returncode == 0, done.stderr
    tab = opened(tmp_path / "report.html", color_scheme=scheme)
    tab.wait_for_selector("details")
    rewards = defaultdict(list)
    with (tmp_path / "report.csv").open() as file:
        for line in csv.DictReader(file):
            if line["tag"] == "train/reward":
                rewards[line["run"]].append(float(line["value"]))
    assert {len(values) for values in rewards.values()} == {2}
    header, *cells = (row.locator("th, td").all_inner_texts() for row in tab.locator("#rows tr").all())
    rows = [dict(zip(header, row, strict=True)) for row in cells]
    assert {"baseline", "schedule", "seeds"} == set(header) - TITLES.keys()
    assert len(rows) == 4
    for row in rows:
        assert row["seeds"] == "2"
        name = f"{row['baseline']}-{row['schedule']}"
        expected = interquartile_mean([np.mean(rewards[f"seed{seed}-{name}"]) for seed in (1, 2)])
        shown = re.findall(r"[\d.]+", row["reward over the run"].split("\n")[0])
        assert [float(number) for number in shown] == pytest.approx(list(expected), abs=1e-4)
    chart = tab.locator("figure[data-chart='seconds by phase']")
    assert chart.locator("p").inner_text() == "Seconds of the whole step."
    chart.locator("select").select_option("time/update")
    assert chart.locator("p").inner_text() == "Seconds of the step spent in this phase."
    assert chart.locator("canvas").count() == 1
    tab.locator("summary").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("td.text")
    assert unreadable(tab) == []


def test_assets_are_what_the_page_names():
    names = re.findall(r"<!-- ([\w.]+) -->", (page.ASSETS / "page.html").read_text())
    there = {path.name for path in page.ASSETS.iterdir()} - {"page.html", "uPlot.LICENSE"}
    assert sorted(names) == sorted({"data", "scripts", *there})
