"""The table of mistakes fits the code, and what plants them does so on a project of one file."""

import ast
import json
import subprocess

import mutate
import pytest
import yaml
from conftest import ROOT
from mutants import TABLE, Mutant, TableError, load

MUTANTS = load(ROOT)
#: Declarations, and what only a GPU does.
WITHOUT = {"__init__", "__pycache__", "kernels", "problem"}


def test_every_room_is_there():
    rooms = {path.stem for path in (ROOT / "src" / "oblr").iterdir()} - WITHOUT
    files = [mutant.file.removeprefix("src/oblr/") for mutant in MUTANTS if mutant.file.startswith("src/oblr/")]
    assert rooms <= {file.partition("/")[0].removesuffix(".py") for file in files}
    assert any(mutant.file.startswith("callbacks/") for mutant in MUTANTS)
    assert len(MUTANTS) >= 150
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("room", sorted({mutant.room for mutant in MUTANTS}))
def test_every_mistake_can_be_made(room):
    """It compiles to another program, and its tests are there; `load` has looked for the files and for ``old``."""
    for mutant in (mutant for mutant in MUTANTS if mutant.room == room):
        good = (ROOT / mutant.file).read_text()
        bad = good.replace(mutant.old, mutant.new)
        compile(bad, mutant.file, "exec")
        assert ast.dump(ast.parse(bad)) != ast.dump(ast.parse(good)), mutant
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() or not name, test


ENTRIES = [
    {
        "room": "shop",
        "file": "src/shop.py",
        "old": "return sum(prices)",
        "new": "return max(prices)",
        "tests": ["tests/test_shop.py"],
        "why": "only the dearest is paid",
    },
    {
        "room": "signs",
        "file": "src/shop.py",
        "old": "    sign = '€'\n    return sign",
        "new": "    return '$'",
        "tests": ["tests/test_shop.py::test_total"],
        "why": "the wrong currency is shown",
    },
    {
        "room": "signs",
        "file": "src/shop.py",
        "old": "limit = 9",
        "new": "limit = 8",
        "tests": ["tests/test_shop.py"],
        "why": "one less",
        "equivalent": "nobody asks for it",
    },
]
SHOP = """limit = 9


def total(prices):
    return sum(prices)


def sign():
    sign = '€'
    return sign
"""
TEST = """from shop import total


def test_total():
    assert total([1, 2]) == 3
"""


@pytest.fixture
def project(tmp_path):
    """A checkout with a file, a test and a table; nothing of it is committed."""
    root = tmp_path / "project"
    for folder in ("src", "tests", "benchmarks/results"):
        (root / folder).mkdir(parents=True)
    (root / "src" / "shop.py").write_text(SHOP)
    (root / "tests" / "test_shop.py").write_text(TEST)
    (root / TABLE).write_text(yaml.safe_dump(ENTRIES, allow_unicode=True))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def results(root):
    return [json.loads(line) for line in (root / mutate.RESULTS).read_text().splitlines()]


def test_one_is_killed_and_one_survives(project, capsys):
    assert mutate.main(project, ["--jobs", "2"]) == 1
    killed, survived = sorted(results(project), key=lambda row: row["room"])
    assert (killed["room"], killed["killed"], killed["by"]) == ("shop", True, "tests/test_shop.py::test_total")
    assert (survived["room"], survived["killed"], survived["by"]) == ("signs", False, "")
    assert killed.keys() == {"id", "room", "killed", "by", "seconds", "revision"}
    out = capsys.readouterr().out
    table, shown = out[out.index("room ") :].split("\n\n", 1)
    assert [line.split() for line in table.splitlines()] == [
        ["room", "mutants", "killed", "share"],
        ["shop", "1", "1", "100%"],
        ["signs", "1", "0", "0%"],
        ["all", "2", "1", "50%"],
    ]
    assert shown.startswith(
        "survived: signs, src/shop.py: the wrong currency is shown (tests/test_shop.py::test_total)\n"
    )
    assert "\n-     sign = '€'\n-     return sign\n+     return '$'\n" in shown
    assert shown.endswith("not tried: signs, src/shop.py: one less: nobody asks for it\n")
    assert (project / "src" / "shop.py").read_text() == SHOP


def test_figures_are_by_room_and_of_all():
    rooms = [("a", True), ("b", True), ("a", False), ("a", True)]
    mutants = {Mutant(room, "f", str(n), "", ("t",), ""): killed for n, (room, killed) in enumerate(rooms)}
    found = [(figure.name, figure.value, figure.unit, figure.holds) for figure in mutate.figures(mutants)]
    assert found == [
        ("a: killed", 2, "of 3 mutants", None),
        ("b: killed", 1, "of 1 mutants", None),
        ("share of the mutants that is killed", 0.75, "", False),
    ]


def test_what_has_been_tried_is_tried_again_only_when_something_has_changed(project):
    assert mutate.main(project, ["--room", "shop"]) == 0
    assert mutate.main(project, ["--room", "shop", "--sample", "5"]) == 0
    assert len(results(project)) == 1
    (project / "tests" / "test_shop.py").write_text(TEST.replace("== 3", "> 0"))
    assert mutate.main(project, ["--room", "shop"]) == 1
    assert [row["killed"] for row in results(project)] == [True, False]


def test_a_test_that_fails_by_itself_tells_nothing(project, capsys):
    (project / "tests" / "test_shop.py").write_text(TEST.replace("== 3", "== 4"))
    assert mutate.main(project, []) == 2
    assert capsys.readouterr().err == (
        "error: tests/mutants.yaml: tests/test_shop.py::test_total fails without any mistake\n"
    )
    assert not (project / mutate.RESULTS).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": "return"}, r"entry 1: src/shop\.py has 'return' 2 times"),
        ({"old": "return min(prices)"}, r"entry 1: src/shop\.py has .* 0 times"),
        ({"file": "src/shops.py"}, r"entry 1: there is no src/shops\.py"),
        ({"tests": ["tests/test_shops.py::test_total"]}, r"entry 1: there is no tests/test_shops\.py"),
        ({"reason": "none"}, r"entry 1: .*'reason'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(project, capsys, change, message):
    (project / TABLE).write_text(yaml.safe_dump([ENTRIES[0] | change, *ENTRIES[1:]]))
    with pytest.raises(TableError, match=f"^{message}"):
        load(project)
    assert mutate.main(project, []) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_is_no_yaml_is_refused_in_one_line(project, capsys):
    (project / TABLE).write_text("- room: shop\n old: [\n")
    assert mutate.main(project, []) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unknown_room(project, capsys):
    assert mutate.main(project, ["--room", "cellar"]) == 2
    assert capsys.readouterr().err == "error: tests/mutants.yaml: there is no room cellar\n"
