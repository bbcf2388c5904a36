"""Which mistakes are planted, which tests meet them, and when one counts as noticed, on a project of two files."""

import random
import subprocess
import time
from itertools import islice
from pathlib import Path

import mutate
import pytest
from mutations import Mutant, differing, drawn, mutants
from nearest import nearest_tests

TILL = """def total(prices):
    return sum(prices)
"""
SIGNS = """def sign():
    return '€'
"""
TEST = """from oblr.shop.till import total


def test_total():
    assert total([1, 2]) == 3
"""
OTHER = """from oblr.signs import sign


def test_nothing():
    assert sign
"""


@pytest.fixture
def project(tmp_path):
    """A checkout in which `sign` is tested by nothing."""
    root = tmp_path / "project"
    files = {
        "src/oblr/__init__.py": "",
        "src/oblr/shop/till.py": TILL,
        "src/oblr/signs.py": SIGNS,
        "tests/test_shop.py": TEST,
        "tests/test_signs.py": OTHER,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    commit(root)
    return root


def commit(root):
    own = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    for command in (["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*own, *command], cwd=root, check=True)


def changes(root, file, source):
    (root / file).write_text(source)
    return [mutant.change()[-1].removeprefix("+").strip() for mutant in mutants(root, file)]


def tried(root, file, change):
    """The one mutant of a file that changes a line into this one."""
    (mutant,) = (mutant for mutant in mutants(root, file) if mutant.change()[-1].removeprefix("+").strip() == change)
    (trial,) = mutate.tried(root, [mutant], 1, time.monotonic() + 100)
    return trial


def test_every_kind_of_mistake_is_there(project):
    source = "def f(a, b):\n    if a < b:\n        g(a)\n    return a + 2 if a is None else h(a, b)\n"
    found = changes(project, "src/oblr/signs.py", source)
    assert {
        "if a <= b:",
        "if (not (a < b)):",
        "pass",
        "g(None)",
        "return a - 2 if a is None else h(a, b)",
        "return a + 3 if a is None else h(a, b)",
        "return a + 2 if a is not None else h(a, b)",
        "return a + 2 if a is None else h(b)",
    } <= set(found)


def test_types_decorators_wording_and_what_is_said_to_be_equivalent_stay_as_they_are(project):
    source = (
        "@cache(1)\n"
        "def f(a: 'X' | 2) -> 3:\n"
        "    '''Adds 1.'''\n"
        "    b: 'X' = a + 1  # pragma: no mutate: for a reason\n"
        "    raise ValueError('what is said')\n"
    )
    assert changes(project, "src/oblr/signs.py", source) == ["raise ValueError(None)"]


def test_a_sample_is_of_all_rooms_and_other_lines_and_the_seeds_alone(project):
    (project / "src/oblr/signs.py").write_text(SIGNS + "".join(f"x{n} = y + {n}\n" for n in range(20)))
    files = {"src/oblr/shop/till.py": None, "src/oblr/signs.py": None}

    def sample(seed):
        found = islice(drawn(project, files, random.Random(seed)), 12)
        return [(mutant.file, mutant.line, mutant.code()) for mutant in found]

    first = sample(1)
    assert {file for file, *_ in first[:2]} == set(files)
    assert len({(file, line) for file, line, _ in first}) == 12
    assert len(set(first)) == 12
    assert sample(1) == first
    assert sample(2) != first


def test_what_differs_is_what_says_something_else(project):
    assert differing(project, "HEAD") == {}
    # Moved to another file, with another docstring, beside a new function and a new statement.
    till = TILL.replace("):\n", "):\n    '''The sum.'''\n") + "\n\ndef new():\n    return 1\n"
    (project / "src/oblr/shop/till.py").unlink()
    (project / "src/oblr/new.py").write_text(till)
    (project / "src/oblr/signs.py").write_text("LIMIT = 2\n" + SIGNS)
    assert differing(project, "HEAD") == {"src/oblr/new.py": {6, 7}, "src/oblr/signs.py": {1}}
    commit(project)
    assert differing(project, "HEAD~1") == {"src/oblr/new.py": {6, 7}, "src/oblr/signs.py": {1}}


def test_the_nearest_tests_come_first_and_then_those_that_name_it(project):
    (project / "tests/helper.py").write_text("import oblr.shop.till\n")
    (project / "tests/test_a.py").write_text("import helper\n")
    (project / "tests/test_b.py").write_text("import oblr.shop.till\n")
    (project / "tests/test_c.py").write_text("'src/run.py'\n")
    (project / "tests/shop").mkdir()
    (project / "tests/shop/test_d.py").write_text("")
    (project / "tests/test_till.py").write_text("")
    (project / "src/run.py").write_text("")
    its_own, imports = ["tests/test_till.py"], ["tests/test_shop.py", "tests/test_b.py"]
    nearest = [*its_own, *imports, "tests/shop/test_d.py", "tests/test_a.py", "tests/test_c.py", "tests/test_signs.py"]
    assert nearest_tests(project, "src/oblr/shop/till.py", ("total",), 9) == nearest
    assert nearest_tests(project, "src/oblr/shop/till.py", ("total",), 2) == nearest[:2]


def test_one_is_noticed_and_one_is_not(project, capsys):
    assert mutate.main(project, ["--room", "shop"]) == 0
    capsys.readouterr()
    assert mutate.main(project, ["--jobs", "2"]) == 0
    *_, missed, table = capsys.readouterr().out.split("\n\n")
    assert missed == "not noticed: src/oblr/signs.py:2\n-    return '€'\n+    return 'XX€XX'"
    assert [line.split() for line in table.splitlines()] == [
        ["room", "planted", "noticed", "share"],
        ["shop", "1", "1", "100%"],
        ["signs", "1", "0", "0%"],
        ["all", "2", "1", "50%"],
    ]
    assert (project / "src/oblr/shop/till.py").read_text() == TILL


@pytest.mark.parametrize(("noticed", "planted", "few"), [(0, 9, 0), (0, 10, 1), (40, 100, 0), (34, 100, 1)])
def test_the_call_fails_where_a_sample_tells(noticed, planted, few):
    assert mutate.too_few(noticed, planted) == few


@pytest.mark.wide
def test_what_differs_is_what_is_tried_and_all_where_nothing_does(project, capsys):
    (project / "src/oblr/signs.py").write_text("LIMIT = 2\n" + SIGNS)
    assert mutate.main(project, ["--since", "HEAD"]) == 0  # one that is not noticed is too few to tell
    assert "src/oblr/shop" not in capsys.readouterr().out
    commit(project)
    assert mutate.main(project, ["--since", "HEAD", "src/oblr/shop/till.py"]) == 0
    assert "src/oblr/shop/till.py:2  tests/test_shop.py::test_total" in capsys.readouterr().out


@pytest.mark.wide
def test_a_test_that_fails_by_itself_tells_nothing_and_the_others_do(project):
    failing = "\n\ndef test_first_of_all():  # total\n    assert False\n"
    (project / "tests/test_shop.py").write_text(TEST.replace("test_total", "test_last") + failing)
    assert tried(project, "src/oblr/shop/till.py", "return sum(None)").by == "tests/test_shop.py::test_last"
    (project / "tests/test_shop.py").write_text(TEST.replace("== 3", "== 4") + failing)
    assert tried(project, "src/oblr/shop/till.py", "return sum(None)").by == ""


@pytest.mark.wide
def test_what_tests_let_pass_and_types_do_not_is_noticed(project):
    (project / "src/oblr/signs.py").write_text("LIMIT: int = 2\nOTHER = 1\n")
    assert tried(project, "src/oblr/signs.py", "LIMIT: int = None").by == "mypy"
    assert tried(project, "src/oblr/signs.py", "LIMIT: int = 3").by == ""


def test_what_cannot_be_imported_any_more_is_noticed(project):
    (project / "src/oblr/shop/till.py").write_text("from operator import add\n\nassert add(1, 2)\n\n" + TILL)
    assert tried(project, "src/oblr/shop/till.py", "assert add(None, 2)").by == "tests/test_shop.py"


@pytest.mark.wide
def test_what_takes_far_longer_than_without_is_noticed_and_nothing_outlives_it(project, monkeypatch, tmp_path):
    monkeypatch.setattr(mutate, "ONE_TEST", 6)
    start = (
        "import subprocess\n\n"
        "other = subprocess.Popen(['sleep', '600'], cwd='/', start_new_session=True)\n"
        f"open('{tmp_path}/started', 'a').write(f'{{other.pid}} ')\n"
    )
    (project / "src/oblr/shop/till.py").write_text("def total(n):\n    while n != 0:\n        n -= 1\n    return 3\n")
    (project / "tests/test_shop.py").write_text(start + TEST.replace("[1, 2]", "2"))
    assert tried(project, "src/oblr/shop/till.py", "n += 1").by == "tests/test_shop.py::test_total"
    started = (tmp_path / "started").read_text().split()
    assert started
    running = [path for pid in started if (path := Path("/proc", pid, "cmdline")).exists() and path.read_bytes()]
    assert not running  # a zombie has no command line


def test_what_is_left_when_the_time_runs_out_is_undecided(project, capsys):
    assert mutate.main(project, ["--minutes", "0"]) == 0
    assert capsys.readouterr().out.endswith("2 of 2 are undecided\n")


@pytest.mark.wide
def test_a_mutant_that_some_tests_have_not_met_yet_is_undecided(project, monkeypatch):
    monkeypatch.setattr(mutate, "PATIENCE", 8)
    (project / "tests/test_shop.py").write_text(
        "import time\n\nimport oblr.shop.till\nimport pytest\n\n\n"
        "@pytest.mark.parametrize('n', range(20))\ndef test_slow(n):\n    time.sleep(1)\n"
    )
    assert tried(project, "src/oblr/shop/till.py", "return sum(None)").by is None


@pytest.mark.parametrize("arguments", [["--room", "cellar"], ["--since", "nowhere"], ["src/oblr/nothing.py"]])
def test_where_nothing_can_be_planted(project, capsys, arguments):
    assert mutate.main(project, arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_figures_are_by_room_and_of_all(project, monkeypatch):
    written = []
    monkeypatch.setattr(mutate.figures, "write", lambda name, figures, missed: written.extend([*figures, missed]))
    rooms = {"a/x": "tests/test_it.py", "b": "tests/test_it.py", "a/y": ""}
    trials = []
    for name, by in rooms.items():
        file = f"src/oblr/{name}.py"
        (project / file).parent.mkdir(exist_ok=True)
        (project / file).write_text(SIGNS)
        (mutant,) = mutants(project, file)
        assert isinstance(mutant, Mutant)
        trials.append(mutate.Trial(mutant, by, 1.0))
    mutate.write(project, trials)
    *figures, missed = written
    assert [(figure.name, figure.value, figure.unit) for figure in figures] == [
        ("a: noticed", 1, "of 2 mutants"),
        ("b: noticed", 1, "of 1 mutants"),
        ("share of the mutants that is noticed", pytest.approx(2 / 3), ""),
    ]
    assert [one["at"] for one in missed] == ["src/oblr/a/y.py:2"]


@pytest.mark.wide
def test_a_mistake_that_deletes_what_it_lies_in_is_noticed_and_the_next_one_meets_tests(project):
    empty = "for entry in os.scandir({}):"
    (project / "src/oblr/shop/till.py").write_text(
        f"import os, shutil\n\n\ndef count(folder):\n    {empty.format('folder')}\n"
        "        shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)\n    return 3\n"
    )
    (project / "tests/test_shop.py").write_text(
        "from oblr.shop.till import count\n\n\ndef test_count(tmp_path):\n    assert count(tmp_path) == 3\n"
    )
    commit(project)
    found = {
        mutant.change()[-1].removeprefix("+").strip(): mutant for mutant in mutants(project, "src/oblr/shop/till.py")
    }
    fatal, harmless = found[empty.format("None")], found["return 4"]
    trials = list(mutate.tried(project, [fatal, harmless], 1, time.monotonic() + 100))
    assert [trial.by for trial in trials] == ["tests/test_shop.py", "tests/test_shop.py::test_count"]
