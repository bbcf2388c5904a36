"""The room's one face, without the rest of the program."""

import subprocess
import sys

import pytest

from oblr.answers import extract, same


def test_the_answer_of_a_response_and_what_equals_it():
    assert extract(r"So $x = 4$, and the area is $\boxed{\frac{1}{2}}$.") == r"\frac{1}{2}"
    assert extract("I do not know.") is None
    assert same("0.5", r"\frac{1}{2}")
    assert not same("0.51", r"\frac{1}{2}")


def test_it_loads_nothing_else_of_the_program():
    code = (
        "import sys; from oblr.answers import same; assert same('50 cm', '0.5 m');"
        "print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith(('oblr.', 'torch'))}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["oblr.answers"]


def test_an_expression_may_be_so_long():
    """150 lexemes, signs and numbers alike: more may nest without an end."""
    assert same("75", "+".join("1" * 75))
    assert not same("76", "+".join("1" * 76))


@pytest.mark.parametrize(("character", "names"), [("≠", "ne neq"), ("≤", "le leq leqslant"), ("≥", "ge geq geqslant")])
def test_a_relation_is_the_same_by_all_its_names(character, names):
    for name in names.split():
        assert same(rf"x \{name} 2", f"x {character} 2")
        assert not same(rf"x \{name} 2", "x = 2")
