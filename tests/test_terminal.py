"""What is on the screen, and what is in the log."""

import os
import threading

import pytest

from oblr.run.terminal import print_error, quiet_terminal


def test_an_error_reaches_the_screen_from_any_thread(tmp_path, capfd):
    with quiet_terminal(tmp_path / "log"):
        os.write(1, b"of a library\n")
        os.write(2, b"of another\n")
        thread = threading.Thread(target=print_error, args=("it hangs",))
        thread.start()
        thread.join()
    print_error("it has ended")
    assert capfd.readouterr() == ("", "error: it hangs\nerror: it has ended\n")
    assert (tmp_path / "log").read_text() == "of a library\nof another\n"


def test_the_log_of_a_run_that_goes_on_has_what_came_before_and_tracebacks(tmp_path):
    (tmp_path / "log").write_text("of the first part\n")
    with pytest.raises(KeyError), quiet_terminal(tmp_path / "log"):
        raise KeyError("mine")
    first, *others = (tmp_path / "log").read_text().splitlines()
    assert first == "of the first part"
    assert others[0] == "Traceback (most recent call last):"
    assert others[-1] == "KeyError: 'mine'"
