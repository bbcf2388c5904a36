"""``python -m pytest`` as a script, which a nursery can start: of the folder that it is started in.

Where there is ``$TEST_LOG`` it says there of each test when it starts and how it ends, beside ``-n 0``. It then runs
first what is short (``LONGEST`` of conftest.py is not), of the file that was named first, and names a word of
``$TEST_WORDS``.
"""

import inspect
import json
import os
import sys
import time
from pathlib import Path

import pytest


class Watch:
    def __init__(self, log: Path, words: list[str]) -> None:
        self.log, self.words = log, words

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        longest = getattr(sys.modules.get("conftest"), "LONGEST", ())
        order = {argument: number for number, argument in enumerate(sys.argv)}

        def key(item: pytest.Item) -> tuple[bool, int, bool]:
            source = inspect.getsource(item.function) if isinstance(item, pytest.Function) else ""
            named = any(word in source for word in self.words)
            return item.path.name in longest, order.get(item.nodeid.partition("::")[0], 0), not named

        items.sort(key=key)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(nodeid, "starts")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.when == "teardown":
            self.say(report.nodeid, report.outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.say(report.nodeid, report.outcome)

    def say(self, test: str, event: str) -> None:
        with self.log.open("a") as file:
            file.write(json.dumps([test, event, time.monotonic()]) + "\n")


if __name__ == "__main__":
    sys.path[0] = ""  # not where this file is: the tests may be those of another checkout
    log = os.environ.get("TEST_LOG")
    watch = [Watch(Path(log), os.environ["TEST_WORDS"].split())] if log else []
    sys.exit(pytest.main(sys.argv[1:], plugins=watch))
