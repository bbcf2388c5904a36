"""Some types of transformers: right or refused; `make bench` tries all."""

from functools import partial

import pytest
from tiny_models import lacking, tiny

from models import QUICK, judge

REFUSED = {"mixtral": "Mixtral", "hrm_text": "is used twice in a pass", "bloom": "for packed sequences"}


@pytest.mark.parametrize("kind", QUICK)
def test_a_type_is_right_or_refused(kind):
    verdict, why, _ = judge(partial(tiny, kind), lacking)
    assert verdict == ("refused" if kind in REFUSED else "right"), why
    assert REFUSED.get(kind, "") in why
