"""What an error of a setting points at."""

import pytest
from conftest import ROOT

from oblr.errors import FAULTS, PAGES, REFERENCE, RunError, page


@pytest.mark.parametrize("name", sorted({*PAGES.values(), REFERENCE, FAULTS}))
def test_every_page_that_is_named_is_there(name):
    assert name in {path.name for path in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("name", ["callbacks", "callbacks.benchmarks", "policy.lora"])
def test_a_setting_has_the_page_of_its_longest_beginning_that_has_one(name):
    assert page(name) == page(f"{name}.a.b") == PAGES[name]
    assert page(f"{name}s") == page(name.rpartition(".")[0] or "nothing")
    assert page("nothing.of.it") == REFERENCE


@pytest.mark.parametrize("kind", [RunError, *RunError.__subclasses__()])
def test_what_ends_a_run_names_a_page(kind):
    assert (ROOT / "docs" / kind.page).is_file()
