"""What is on the screen, and what is in the log."""

import os
import threading

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
