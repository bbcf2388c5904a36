"""What several runs of the suite say together."""

from again import LIMIT, LOADED, Run, series

GOOD = Run("abc", True, 2000, 600.0, 2.0, idle=True)
SLOW = Run("abc", True, 2000, LIMIT + 1, LOADED, idle=False)
FAILED = Run("abc", False, 1999, 600.0, 2.0, idle=False)


def test_a_failure_begins_the_row_anew():
    figures = {figure.name: figure for figure in series([GOOD] * 9 + [FAILED] + [GOOD] * 4 + [SLOW] * 6)}
    assert figures["runs in a row that passed"].value == 10
    assert figures["runs in a row that passed"].holds
    assert figures["of them on a loaded machine"].value == 6
    assert figures["of them on a loaded machine"].holds
    assert figures["time on a machine of its own, longest"].value == 600.0
    assert figures["time on a loaded machine, mean"].value == LIMIT + 1
    assert [figure.value for figure in series([GOOD, FAILED])] == [0, 0]


def test_nine_are_too_few():
    in_a_row, loaded = series([FAILED] + [SLOW] * 4 + [GOOD] * 5)[:2]
    assert not in_a_row.holds
    assert not loaded.holds
