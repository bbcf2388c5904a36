"""The pages' own search, in a browser: what people look for leads to the page that says it."""

import subprocess
import sys

import pytest
from conftest import ROOT

#: What somebody types → the page that has it, among the first three found.
SOUGHT = {
    **dict.fromkeys(("custom reward function", "custom baseline", "custom loss", "custom dataset"), "Write your own"),
    "custom environment": "Write your own",
    "learning rate schedule": "Schedules",
    "tensorboard custom scalars": "Watch a run",
}


@pytest.mark.browser
def test_what_people_look_for_is_found(tmp_path):
    from playwright.sync_api import sync_playwright

    built = subprocess.run([sys.executable, "-m", "sphinx", "-q", "docs", str(tmp_path)], cwd=ROOT, capture_output=True)
    assert built.returncode == 0, built.stderr
    found = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page()
        for sought in SOUGHT:
            tab.goto(f"{(tmp_path / 'search.html').as_uri()}?q={sought.replace(' ', '+')}")
            tab.locator("#search-results .search-summary, #search-results p").first.wait_for()
            tab.wait_for_function("!document.querySelector('#search-progress')?.textContent.trim()")
            tab.wait_for_function("document.querySelector('#search-results').innerText.match(/finished|did not match/)")
            found[sought] = tab.locator("#search-results li a").all_inner_texts()[:3]
        browser.close()
    assert {sought: page in found[sought] for sought, page in SOUGHT.items()} == dict.fromkeys(SOUGHT, True), found
