"""Reports of long runs: thinned curves that lose no spike, and pieces beside the page that hold all the rest."""

import base64
import gzip
import json
import random
import re
import sys
import threading
import urllib.error
import urllib.request
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from test_report import HOSTILE, data_of, followed, make_run, opened, server  # noqa: F401

from oblr.commands import report
from oblr.record.curves import METRICS, Curves, read_curves
from oblr.record.logger import RunRecord
from oblr.report import page
from oblr.report.curves import LEAST, MOST, Line, buckets_of, line, thinned, width
from oblr.report.page import content, html, whereabouts, write_report
from oblr.report.pieces import FILES, SIZE, STEPS, Beside, Served, parts, script
from oblr.report.runs import Reading, find_runs, read_run
from oblr.run.appended import Appended

STRANGE = "a b/ä ö/50% #1/q?x=1&y"


def read_piece(text: str):
    """As a browser does: the argument of the call is a string of JavaScript, and that is JSON."""
    (argument,) = re.fullmatch(r"piece\((\".*\")\);\n", text).groups()
    return json.loads(json.loads(argument))


@pytest.fixture
def small_room(monkeypatch):
    """Pages have room for next to nothing, so that runs of a few steps are long ones."""
    monkeypatch.setattr(page, "ROOM", 1000)


def make_long(folder: Path, steps: int = 2000, seed: int = 1) -> Path:
    """A run with one spike up and one down in its reward, and responses of a few steps."""
    make_run(folder, seed)
    with (folder / METRICS).open("a") as file:
        for step in range(5, steps + 1):
            reward = {777: 99.0, 1234: -99.0}.get(step, 0.001 * step + seed)
            file.write(json.dumps({"step": step, "train/reward": reward, "train/lr": 0.01 / step}) + "\n")
    return folder


# --- thinning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_thinned_line_has_every_extreme_and_its_last_point(seed):
    """Of any length and shape: each point is one of the line, and no window of it had a higher or a lower one."""
    draw = np.random.default_rng(seed)
    count, buckets = int(draw.integers(1, 20_000)), int(draw.integers(1, 300))
    columns = tuple(draw.standard_cauchy(count).round(int(draw.integers(0, 3))) for _ in range(draw.choice([1, 3])))
    whole = Line(0, np.sort(draw.choice(10 * count, count, replace=False)), columns)
    few = thinned(whole, buckets)
    places = np.searchsorted(whole.steps, few.steps)
    assert (whole.steps[places] == few.steps).all()
    for column, kept in zip(whole.columns, few.columns, strict=True):
        assert (column[places] == kept).all()
        size = width(count, buckets)
        for start in range(0, count, size):
            inside = kept[(places >= start) & (places < start + size)]
            assert (inside.min(), inside.max()) == (
                column[start : start + size].min(),
                column[start : start + size].max(),
            )
    assert (few.steps[0], few.steps[-1]) == (whole.steps[0], whole.steps[-1])
    assert len(few.steps) <= max(3 * buckets, (1 + 2 * len(columns)) * buckets + 2)


def test_a_line_of_several_runs_is_what_they_make_together_at_each_step():
    """Where some have no point, too; and thinned only afterwards, so that a mean is always of all that are there."""
    draw = random.Random(0)
    curves = [([1, 2, 5], [1.0, 3.0, -8.0]), ([2, 3, 5], [5.0, 0.5, 8.0]), ([5], [3.0])]
    found = line(2, curves)
    for place_, step in enumerate([1, 2, 3, 5]):
        values = [value for at, of_one in curves for s, value in zip(at, of_one, strict=True) if s == step]
        together = (np.mean(values), max(values), min(values))
        assert tuple(column[place_] for column in found.columns) == pytest.approx(together)
    draw.shuffle(curves)
    assert [column.tolist() for column in line(2, curves).columns] == [column.tolist() for column in found.columns]


def test_pages_of_many_lines_have_no_more_numbers():
    lines = [Line(i, np.arange(5000), (np.random.default_rng(i).random(5000),)) for i in range(500)]
    assert LEAST <= buckets_of(lines) < buckets_of(lines[:100]) <= MOST == buckets_of(lines[:1])
    assert sum(thinned(each, buckets_of(lines)).numbers for each in lines) <= page.ROOM / page.NUMBER


# --- pieces ---------------------------------------------------------------------------------------------------------


def test_a_small_run_is_one_file(tmp_path):
    folder = make_run(tmp_path / "run")
    path = write_report(folder, [read_run(folder)])
    assert whereabouts(path) == str(path)
    assert not (folder / FILES).exists()


def test_a_long_run_has_a_small_page_and_all_else_beside_it(tmp_path, monkeypatch, capsys):
    """As the program says in its line; every point and every response is there, as it was logged."""
    folder = make_long(tmp_path / "run")
    whole = html([read_run(folder)])
    monkeypatch.setattr(page, "ROOM", 1000)
    monkeypatch.setattr(sys, "argv", ["report.py", str(folder)])
    report.main()
    path = folder / "report.html"
    assert capsys.readouterr().out == f"report      {path} and report_files/: keep them together\n"
    shown = data_of(path.read_text())
    thin = len(json.dumps(shown["curves"]))
    assert thin < 0.5 * len(json.dumps(data_of(whole)["curves"]))
    assert len(path.read_text()) < len(whole) - thin
    ((_, steps, values),) = shown["curves"]["train/reward"]
    assert {(777, 99.0), (1234, -99.0), (2000, 3.0)} <= set(zip(steps, values, strict=True))
    for tag, curve in read_curves(folder).items():
        pieces = [read_piece((folder / address).read_text()) for _, _, address in shown["exact"][tag]]
        points = [of for one in pieces for of in one]
        assert [list(chain.from_iterable(of[i] for of in points)) for i in (1, 2)] == [list(column) for column in curve]
    (run,) = shown["runs"]
    assert run["steps"] == {}
    assert [step for _, steps in run["pieces"] for step in steps] == [1, 2, 3, 4]
    kept = {step: of for address, _ in run["pieces"] for step, of in read_piece((folder / address).read_text()).items()}
    assert kept == data_of(whole)["runs"][0]["steps"]


def test_the_page_grows_with_no_step(tmp_path, small_room):
    """Ten times as many steps, and curves of about the same size."""
    sizes = []
    for steps in (2000, 20_000):
        folder = make_long(tmp_path / str(steps), steps)
        shown = content([read_run(folder)], Served())
        sizes.append(len(json.dumps(shown["curves"])))
    assert sizes[1] < 1.2 * sizes[0]


def test_what_is_written_already_is_not_written_again(tmp_path, small_room):
    """After a step more, other pieces are what they were; those that no page names are gone, and nothing else."""
    folder = make_run(tmp_path / "run", steps=2 * STEPS + 2)
    write_report(folder, [read_run(folder)])
    (folder / FILES / "mine.txt").write_text("not of the report")
    before = {path: path.stat().st_ino for path in (folder / FILES).glob("steps-*")}
    assert len(before) == 3
    last = sorted((folder / "rollouts").iterdir())[-1]
    last.with_name(last.name.replace(f"{2 * STEPS + 2:06d}", f"{2 * STEPS + 3:06d}")).write_bytes(last.read_bytes())
    write_report(folder, [read_run(folder)])
    after = {path: path.stat().st_ino for path in (folder / FILES).glob("steps-*")}
    assert len(after) == 3
    assert len(before.items() & after.items()) == 2
    named = {address for address, _ in data_of((folder / "report.html").read_text())["runs"][0]["pieces"]}
    assert {f"{FILES}/{path.name}" for path in after} == named
    # What another step has become is another piece.
    first = sorted((folder / "rollouts").iterdir())[0]
    first.write_bytes(gzip.compress(b'{"group": 0, "response": 0}\n'))
    write_report(folder, [read_run(folder)])
    address, _ = data_of((folder / "report.html").read_text())["runs"][0]["pieces"][0]
    of_first = read_piece((folder / address).read_text())["1"]["ranks"]
    assert [gzip.decompress(base64.b64decode(rank)) for rank in of_first] == [b'{"group": 0, "response": 0}\n']
    assert (folder / FILES / "mine.txt").exists()


def test_a_report_that_needs_no_pieces_any_more_has_none(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(page, "ROOM", 1000)
        assert whereabouts(write_report(folder, [read_run(folder)])).endswith(f"and {FILES}/: keep them together")
    assert whereabouts(write_report(folder, [read_run(folder)])) == str(folder / "report.html")
    assert not (folder / FILES).exists()


def test_reports_of_several_runs_share_the_pieces_of_each(tmp_path, small_room, monkeypatch):
    """They take no room twice, and so all steps are there, whatever room there is for copies."""
    for seed in (1, 2):
        folder = make_run(tmp_path / f"seed{seed}", seed, steps=3)
        write_report(folder, [read_run(folder)])
    monkeypatch.setattr(page, "ROOM_BESIDE", 0)
    write_report(tmp_path, find_runs([tmp_path]))
    for seed, run in zip((1, 2), data_of((tmp_path / "report.html").read_text())["runs"], strict=True):
        ((address, steps),) = run["pieces"]
        assert steps == [1, 2, 3]
        assert (tmp_path / address).samefile(tmp_path / f"seed{seed}" / address)


def test_where_copies_have_no_room_steps_are_left_out_evenly(tmp_path, small_room, monkeypatch):
    run = read_run(make_run(tmp_path / "run", steps=9))
    everything = sum(page.base64_size(files) for files in run.rollouts.values())
    for number, (room, steps) in enumerate(
        [
            (everything, list(range(1, 10))),
            (int(0.99 * everything), [1, 3, 5, 7, 9]),
            (everything // 2, [1, 5, 9]),
            (10, []),
        ]
    ):
        monkeypatch.setattr(page, "ROOM_BESIDE", room)
        (tmp_path / str(number)).mkdir()
        (shown,) = content([run], Beside(tmp_path / str(number)))["runs"]
        assert [step for _, some in shown["pieces"] for step in some] == steps


@pytest.mark.parametrize("seed", range(10))
def test_where_a_piece_ends_depends_on_its_own_steps(seed):
    """All steps are in one, in their order; large ones are alone; and what comes later moves none but the last."""
    draw = random.Random(seed)
    steps = sorted(draw.sample(range(1, 2000), draw.randrange(1, 600)))
    sizes = {step: int(SIZE * draw.random() ** draw.choice([1, 8, 20]) * 1.5) for step in steps}
    found = list(parts(sizes))
    assert list(chain.from_iterable(found)) == steps
    for part in found:
        assert len(part) == 1 or sum(sizes[step] for step in part) <= SIZE
        assert part[-1] // STEPS == part[0] // STEPS
    more = list(parts(sizes | {2000 + step: SIZE // 10 for step in range(draw.randrange(200))}))
    assert [part for part in found if part[-1] // STEPS != 2000 // STEPS] == [
        part for part in more if part[-1] // STEPS < 2000 // STEPS
    ]


def test_a_piece_is_a_string_and_nothing_else():
    """Whatever stands in it: no element ends, no line of JavaScript does, and no name has a meaning."""
    hostile = {"__proto__": {"x": "</script><!--\u2028\u2029'\"\\`${}"}, "constructor": [None, 1e-300, True]}
    text = script(hostile).decode("ascii")
    assert read_piece(text) == hostile
    assert "<" not in text
    assert text.count("\n") == 1


# --- runs that go on ------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_is_read_from_where_it_was(tmp_path):
    """Whole lines alone, and anew where it went back; what it says is what reading all of it says."""
    folder = make_long(tmp_path / "run", 200)
    record, curves, reading = RunRecord(str(folder)), Curves(folder), Reading(folder)

    def same() -> bool:
        return {tag: tuple(map(list, curve)) for tag, curve in curves.read().items()} == read_curves(folder)

    assert same()
    with (folder / METRICS).open("r+") as file:
        first = file.readline()
        file.seek(0)
        file.write("?" * 10)  # whoever reads that ends here
    record.log_metrics({"train/reward": 7.0, "train/lr": 0.1}, 201)
    assert curves.read()["train/reward"][1][-1] == 7
    with (folder / METRICS).open("r+") as file:
        file.write(first[:10])
    with (folder / METRICS).open("a") as file:
        file.write('{"step": 202, "train/re')
        file.flush()
        assert same()
        file.write('ward": 3.0}\n')
    assert curves.read()["train/reward"][1][-1] == 3
    record.go_back(150)
    assert same()
    assert curves.read()["train/lr"][0][-1] == 150
    record.log_metrics({"train/lr": 0.3}, 151)
    assert same()
    assert reading.warnings() == ["step 3: the entropy has collapsed"]
    with (folder / "train.log").open("a") as log:
        log.write("2026-01-31 12:00:00,000 WARNING callbacks.monitors: step 9: another\n")
    assert reading.warnings() == ["step 3: the entropy has collapsed", "step 9: another"]


@pytest.mark.parametrize("seed", range(10))
def test_lines_of_a_file_are_read_once_each_until_it_is_another(tmp_path, seed):
    """Whatever happens to it, in any order: what was read, in its place, is what is in it."""
    draw, path, known = random.Random(seed), tmp_path / "file", list[bytes]()
    file = Appended(path)
    for number in range(60):
        happens = draw.choice(["append", "append", "half", "rewrite", "cut", "gone"])
        text = path.read_bytes() if path.exists() else b""
        line = f"{number} {'x' * draw.randrange(20)}".encode()
        if happens == "append":
            path.write_bytes(text + line + b"\n")
        elif happens == "half":
            path.write_bytes(text + line)
        elif happens == "rewrite":
            path.with_suffix(".new").write_bytes(b"".join(text.splitlines(keepends=True)[:-1]) + line + b"\n")
            path.with_suffix(".new").replace(path)
        elif happens == "cut":
            path.write_bytes(text[: len(text) // 2])
        elif path.exists():
            path.unlink()
        if draw.random() < 0.6:
            new, replaced = file.lines()
            known = new if replaced else known + new
            assert known == (path.read_bytes().split(b"\n")[:-1] if path.exists() else [])


def test_what_is_followed_has_its_pieces_too(tmp_path, small_room):
    """They are made when they are asked for, and nothing is written into the run's folder."""
    folder = make_long(tmp_path / "run", 300)
    there = sorted(folder.rglob("*"))
    with server([folder], port=0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = serving.address

        def get(path: str) -> str:
            with urllib.request.urlopen(address + path) as answer:
                return answer.read().decode()

        (run,) = data_of(get(""))["runs"]
        ((piece, steps),) = run["pieces"]
        assert list(map(int, read_piece(get(piece)))) == steps == [1, 2, 3, 4]
        for other in (f"{FILES}/", f"{FILES}/../config.yaml", f"{piece}x", "config.yaml"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(other)
        serving.shutdown()
    assert sorted(folder.rglob("*")) == there


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_a_long_run_in_a_browser(tmp_path, opened, small_room):  # noqa: F811
    """In a folder of any name: its first step, a step by its address, and all points of a part of a chart."""
    folder = make_long(tmp_path / STRANGE)
    tab = opened(write_report(folder, [read_run(folder)]))
    tab.wait_for_selector("#groups details")
    assert tab.locator("#step").inner_text() == "1"
    assert "training reward 1.1" in tab.locator("#numbers").inner_text()
    tab.evaluate("location.hash = '#step=3'")
    tab.wait_for_function("document.getElementById('numbers').textContent.includes('training reward 1.3')")
    reward = tab.locator("figure[data-chart='reward']")
    assert reward.locator("[role=status]").inner_text().startswith("Every 8th point is drawn, and all spikes are.")
    drawn = "document.querySelector('figure[data-chart=reward]').plot.data"
    assert tab.evaluate(f"{drawn}[0].length") < 1000
    assert tab.evaluate(f"[Math.max(...{drawn}[1]), Math.min(...{drawn}[1])]") == [99, -99]
    over = reward.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    tab.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 20)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 25, steps=4)
    tab.mouse.up()
    tab.wait_for_function("document.querySelector('figure [role=status]').textContent.startsWith('Every point from')")
    low, high = map(int, re.findall(r"\d+", reward.locator("[role=status]").inner_text())[:2])
    assert (low, high) == (pytest.approx(500, abs=30), pytest.approx(1000, abs=30))
    steps, values = tab.evaluate(drawn)
    _, exact = read_curves(folder)["train/reward"]
    shown = {step: value for step, value in zip(steps, values, strict=True) if low <= step <= high}
    assert shown == {step: exact[step - 1] for step in range(low, high + 1)}
    reward.locator("button").press("Enter")
    tab.wait_for_function(f"{drawn}[0].length === 2000")
    assert tab.evaluate(drawn) == [list(range(1, 2001)), exact]


@pytest.mark.browser
def test_several_long_runs_in_a_browser(tmp_path, opened, small_room):  # noqa: F811
    """A line and a band of each configuration; other tags of a chart come from beside the page."""
    for seed in (1, 2):
        folder = make_long(tmp_path / f"seed{seed}", seed=seed)
        with (folder / METRICS).open("a") as file:
            for step in range(1, 2001):
                file.write(json.dumps({"step": step, "time/step": 2.0, "time/update": 1.0 * seed}) + "\n")
    tab = opened(f"{write_report(tmp_path, find_runs([tmp_path])).as_uri()}#run=seed2&step=4")
    tab.wait_for_function("document.getElementById('numbers').textContent.includes('training reward 2.5')")
    drawn = "document.querySelector('figure[data-chart=reward]').plot.data.map((column) => column[0])"
    assert tab.evaluate(drawn) == pytest.approx([1, 1.65, 2.2, 1.1])
    chart = tab.locator("figure[data-chart='seconds by phase']")
    assert tab.evaluate("'time/update' in data.curves") is False
    chart.locator("select").select_option("time/update")
    chart.locator("canvas").wait_for()
    found = "document.querySelector(\"figure[data-chart='seconds by phase']\").plot.data.map((column) => column.at(-1))"
    assert tab.evaluate(found) == [2000, 1.5, 2, 1]


@pytest.mark.browser
def test_a_piece_that_is_missing_is_one_sentence(tmp_path, small_room):
    """Of a step, and of a chart; what else is on the page can be read as ever."""
    from playwright.sync_api import sync_playwright

    folder = make_long(tmp_path / "run", steps=2000)
    path = write_report(folder, [read_run(folder)])
    for piece in (folder / FILES).iterdir():
        if "curve" in piece.name:
            piece.write_text('piece("{')  # cut
        else:
            piece.unlink()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(bypass_csp=True)  # for `wait_for_function`
        tab.goto(path.as_uri())
        tab.wait_for_function("document.getElementById('nearest').textContent !== ''")
        said = tab.locator("#nearest").inner_text()
        assert re.fullmatch(
            r"The responses of step 1 cannot be shown\. It should be in report_files/steps-\S+\.js, which cannot be "
            r"read: report_files belongs beside this page, as it was written with it\.",
            said,
        )
        assert tab.locator("figure canvas").count() == 2
        assert tab.locator("#settings tr").count() > 2
        tab.locator("figure button").first.click()
        tab.wait_for_function("document.querySelector('figure [role=status]').textContent.startsWith('Not all points')")
        assert tab.locator("figure canvas").count() == 2
        browser.close()


@pytest.mark.browser
def test_what_a_response_says_does_nothing_from_a_piece(tmp_path, opened, small_room):  # noqa: F811
    hostile = HOSTILE + "\u2028\u2029<!--\\`${document.title = 3}*/');document.title = 2;//"
    folder = make_run(tmp_path / "run", text=hostile)
    tag = hostile.replace("/", "")  # what stands before the last one is left out of its name
    RunRecord(str(folder)).log_metrics({f"train/{tag}": 1.0}, 1)
    tab = opened(write_report(folder, [read_run(folder)]))
    tab.wait_for_selector("#groups details")
    tab.locator("details[data-group='0'] summary").click()
    tab.wait_for_selector("td.text")
    assert tab.locator("td.text div").first.evaluate("one => one.textContent") == hostile
    assert tag in tab.locator("#numbers").evaluate("one => one.textContent")
    assert tab.title() == "OBLR-PO report"


@pytest.mark.browser
def test_a_long_run_is_followed(tmp_path, opened):  # noqa: F811
    """By the real script, of a run that is larger than a page: thinned, with its steps on demand."""
    folder = make_long(tmp_path / "run", 2000)
    (large,) = sorted((folder / "rollouts").glob("step-000002-*"))
    noise = base64.b64encode(random.Random(0).randbytes(page.ROOM)).decode()
    rows = [json.loads(text) for text in gzip.decompress(large.read_bytes()).splitlines()]
    rows[0]["text"] = noise
    large.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), compresslevel=1))
    with followed(folder) as address:
        tab = opened(address)
        tab.wait_for_selector("#groups details")
        assert tab.evaluate("document.documentElement.outerHTML.length") < 10**6
        tab.evaluate("location.hash = '#step=3'")
        tab.wait_for_function("document.getElementById('numbers').textContent.includes('training reward 1.3')")
        tab.locator("figure button").first.click()
        tab.wait_for_function("document.querySelector('figure[data-chart=reward]').plot.data[0].length === 2000")
        tab.close()
