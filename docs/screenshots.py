"""The pictures of ``watching.md``: TensorBoard's first tab and the report of a run, as headless Chromium shows them.

make demo chromium
python docs/screenshots.py runs/pocket/<the demo's run>
"""

import argparse
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from oblr.record.tags import CATEGORIES

DOCS = Path(__file__).parent
WIDTH, HEIGHT = 1200, 900
#: A phone's.
NARROW, TALL = 390, 844
#: The step that is shown: in the demo a monitor warns of it.
STEP = 52


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """Its address on loopback."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder.name, "--port=0", "--host=127.0.0.1"]
    # Which folder it is of is on the page: by its name alone.
    process = subprocess.Popen(command, cwd=folder.parent, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/", line)))
        # Its server reads the run's files at its own pace, and a page that comes first shows nothing for half a minute.
        while not json.load(urlopen(f"{address}data/plugins_listing"))["custom_scalars"]["enabled"]:
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.communicate()


def keep(tab: Page, name: str) -> None:
    """As PNG, of 128 colours: a page of text and lines needs no more, and is a third as large."""
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(128)
    picture.save(DOCS / name, optimize=True)
    print(f"{name}  {(DOCS / name).stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    run = parser.parse_args().run
    with sync_playwright() as play, tensorboard(run) as address:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto(f"{address}#custom_scalars")
        cards = tab.locator("tf-custom-scalar-multi-line-chart-card, tf-custom-scalar-margin-chart-card")
        cards.nth(sum(map(len, CATEGORIES.values())) - 1).wait_for(state="attached")
        tab.wait_for_load_state("networkidle")
        tab.wait_for_timeout(3000)  # curves grow into their place
        keep(tab, "tensorboard.png")
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto((run / "report.html").resolve().as_uri())
        tab.wait_for_selector("details")
        keep(tab, "report.png")
        for name, width, height in (("report-step.png", WIDTH, HEIGHT), ("report-phone.png", NARROW, TALL)):
            tab = browser.new_page(viewport={"width": width, "height": height})
            tab.goto(f"{(run / 'report.html').resolve().as_uri()}#step={STEP}")
            tab.wait_for_selector("#largest li")
            tab.evaluate("by('h-step').scrollIntoView()")
            keep(tab, name)
        browser.close()


if __name__ == "__main__":
    main()
