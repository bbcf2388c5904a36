"""Attacks on the real program. Each says what it tries, and what stopped it: ``make attack`` prints the table."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

HERE = Path(__file__).parent.parent / "attacks"
TRIED, STOPPED = "tried", "stopped by"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.attack)


@pytest.fixture
def stopped(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Callable]:
    """To be called with what stopped the attack, in the program's own words where it has some.

    What was tried is the first line of the test's docstring, and the case where it has several.
    """
    said = []
    tried = str(request.function.__doc__).strip().partition("\n")[0].rstrip(".")
    case = getattr(request.node, "callspec", None)
    record_property(TRIED, f"{tried} ({case.id})" if case else tried)

    def say(by: object) -> None:
        said.append(by)
        shown = (one if one.isprintable() else "\ufffd" for one in " ".join(str(by).split()))
        record_property(STOPPED, "".join(shown))

    yield say
    assert said, "the test does not say what stopped the attack"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hostile text that was printed or logged is on its way to another process, which takes well-formed text alone."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    rows = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            found = dict(getattr(report, "user_properties", ()))  # what could not be collected has none
            if TRIED in found:
                by = found.get(STOPPED, "nothing that it names")
                rows[report.nodeid] = (found[TRIED], by if outcome == "passed" else "NOTHING: it succeeded")
    if rows:
        terminalreporter.section("attacks")
        for tried, by in rows.values():
            terminalreporter.write_line(f"{tried}\n    {by:.220}")
        terminalreporter.write_line(f"{len(rows)} attacks tried")
