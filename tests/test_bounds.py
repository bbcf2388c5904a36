"""What numbers and words may be; that pydantic finds the same, of all settings, is in ``settings/test_settings.py``."""

import math
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy
import pytest

from oblr.errors import SettingError
from oblr.kinds import NOT_EMPTY, Decay, Few, Ge, Gt, Le, Lt, Natural, PositiveShare, Seed, Text, Word, check, checked

EITHER = Natural | Annotated[float, Ge(0), Le(1)] | None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((float, value) for value in (1, -0.5, numpy.float32(0.5), numpy.int64(2), Fraction(1, 2), 10**400)),
        *((Few, 1), (Few, 2**20), (Seed, 2**32 - 1), (Decay, 0), (PositiveShare, 1)),
        *((EITHER, 7), (EITHER, 0.5), (EITHER, None), (Text, ""), (Word, " "), (Any, object()), (bool, False)),
        *((Literal["a", 3], 3), (list[float], []), (list[float], [1, 0.5]), (dict[str, list[int]], {"a": [1]})),
    ],
)
def test_what_is_of_its_kind(kind, value):
    check("a.b", kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "fix"),
    [
        *((int, value, "be a valid integer") for value in (True, 1.0, "1", None, math.nan, numpy.int64(1), [1])),
        *((float, value, "be a valid number") for value in (True, "0.5", None, [0.5])),
        *((float, value, "be a finite number") for value in (math.nan, math.inf, -math.inf, numpy.float64("nan"))),
        *((bool, value, "be a valid boolean") for value in (0, 1, None, "true")),
        *((type(None), value, "be None") for value in (0, "", False)),
        *((Annotated[float, Ge(0.01)], value, "be greater than or equal to 0.01") for value in (0, 0.0099)),
        *((Annotated[int, Gt(3)], value, "be greater than 3") for value in (3, -(10**40))),
        *((Annotated[float, Le(1e9)], value, "be less than or equal to 1000000000") for value in (1e9 + 1, 10**400)),
        *((Annotated[int, Lt(2**32)], value, "be less than 4294967296") for value in (2**32, 10**40)),
        *((Annotated[list[int], NOT_EMPTY], [], "not be empty"), (Word, "", "not be empty")),
        *((Literal["a", "b", 3], value, "be 'a', 'b' or 3") for value in ("c", None, [])),
        *(
            (Literal["a"] | None, 1, "be 'a'"),
            (list[int], (1,), "be a valid list"),
            (list[int], [1, "a"], "be a valid integer"),
        ),
        (EITHER, "a", "be a valid integer, or should be a valid number"),
        (EITHER, -1, "be greater than or equal to 0"),
        (dict[str, float], {1: "a"}, "be a valid string, or should be a valid number"),
        (dict[str, float], [], "be a valid dictionary"),
    ],
)
def test_what_is_none_of_its_kind_and_what_would_be(kind, value, fix):
    with pytest.raises(SettingError, match=r"^a\.b: .* cannot work") as error:
        check("a.b", kind, value)
    assert error.value.fix == f"it should {fix}"


def test_who_constructs_is_told_and_what_is_no_number_is_left_alone():
    @checked("thing")
    class Thing:
        def __init__(self, share: Decay, names: list[str], level: Few | None = None):
            self.share, self.names, self.level = share, names, level

    assert vars(Thing(0.5, 7, level=3)) == {"share": 0.5, "names": 7, "level": 3}
    with pytest.raises(SettingError, match=r"^thing\.share: 1 cannot work \(it should be less than 1\)"):
        Thing(1, [])
    with pytest.raises(SettingError, match=r"^thing\.level: 0 cannot work \(it should be greater than or equal to 1\)"):
        Thing(0.5, [], level=0)
