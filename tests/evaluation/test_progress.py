import io

import pytest
import rich
from rich.console import Console
from rich.progress import Progress

from oblr.run.progress import shown


@pytest.fixture
def seconds():
    """What the clock says."""
    return [0.0]


@pytest.fixture
def screen(monkeypatch, seconds):
    def made(terminal):
        console = Console(
            file=io.StringIO(), force_terminal=terminal, width=120, color_system=None, get_time=lambda: seconds[0]
        )
        monkeypatch.setattr(rich, "_console", console)
        return console.file

    return made


@pytest.mark.parametrize("terminal", [True, False])
def test_rate_and_time_left_are_of_what_was_sampled_now(screen, seconds, terminal):
    file = screen(terminal)
    with shown(total=100, done=20) as display:
        assert isinstance(display.progress, Progress)
        display.phase("loading engine", sampling=False)
        assert "loading engine" in file.getvalue()
        seconds[0] = 50.0
        display.phase("sums")
        seconds[0] = 60.0
        display.advance(20)
        assert display.rate == "2/s"  # loading does not count, nor does what an earlier process sampled
        assert display.state.time_remaining == 30
        display.progress.refresh()
        display.line()
    text = file.getvalue()
    assert ("sums        40 of 100 responses  2/s  0:00:30 left" in text) == (not terminal)
    assert ("40/100 2/s" in text) == terminal
