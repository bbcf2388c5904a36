"""What is on the screen, and what is in the log."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import warm
from cases import wide
from conftest import ROOT, SMALL
from screens import Screen, shown

from oblr.run.terminal import print_error, quiet_terminal, say, unseen


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


def test_what_is_printed_before_there_is_a_log_is_in_it(tmp_path, capfd):
    with unseen():
        os.write(2, b"while importing\n")
        with quiet_terminal(tmp_path / "log"):
            os.write(1, b"later\n")
            say("path        runs/[bold]x[/bold]:smile:")
        os.write(2, b"in between\n")
        with quiet_terminal(tmp_path / "other"):
            pass
    assert capfd.readouterr() == ("path        runs/[bold]x[/bold]:smile:\n", "")
    assert (tmp_path / "log").read_text() == "while importing\nlater\n"
    assert (tmp_path / "other").read_text() == "in between\n"


def _raise(error):
    raise error


def test_what_ends_a_process_without_a_log_brings_to_light_what_it_has_printed(capfd):
    for printed, end in ((b"a library says why\n", KeyError()), (b"of no interest\n", SystemExit(2))):
        with pytest.raises(type(end)), unseen():
            os.write(2, printed) and _raise(end)
    assert capfd.readouterr().err == "a library says why\n"


#: What a run says by itself, line for line.
OURS = re.compile(
    r"(settings   | {12}[a-z]|rewards     |doctor      |run folder  |watch it    "
    r"|sample      .* → .*\(reward|resuming    "
    r"|\d\d:\d\d:\d\d  step \d+/\d+  reward [\d.]+  SNR [\d.]+  η [\d.e-]+  \d+ tok/s$"
    r"|finishing step [23], then saving; again to stop now$|stopped after step [23]; go on with ckpt_path=last$)"
)


@pytest.mark.wide
def test_a_terminal_shows_the_run_and_nothing_else(tmp_path):
    """A process that imports by itself, for ten seconds: what libraries print then has been on the screen before."""
    folder, screen = tmp_path / "a[x]", Screen()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    command = ["src/train.py", *SMALL, f"paths.output_dir='{folder}'", "seed=2", "callbacks.progress.every=2"]
    process = subprocess.Popen(
        [sys.executable, *command, "steps=50"],
        cwd=ROOT,
        stdin=screen.theirs,
        stdout=screen.theirs,
        stderr=screen.theirs,
        start_new_session=True,
        env=environment,
    )
    screen.until(lambda written: "settings" in written)
    assert len(set(re.findall("[\u2800-\u28ff]", screen.written))) > 5  # something has moved since the first second
    assert "importing 0:00:00" in re.sub(r"\x1b\[[\d;]*m", "", screen.written)
    screen.until(lambda written: "step 2/50" in written)
    process.send_signal(signal.SIGINT)
    assert screen.until(lambda written: "; again to stop now" in written) < 1
    assert screen.end(process) == 130
    lines = shown(screen.written)
    assert [line for line in lines if not OURS.match(line)] == []
    done = sum("  step " in line for line in lines)
    assert done in (2, 3)
    assert f"stopped after step {done}; go on with ckpt_path=last" in lines
    assert sum(line.startswith("sample ") for line in lines) == (done + 1) // 2
    assert f"run folder  {folder}" in lines
    assert screen.written.rindex("\x1b[?25h") > screen.written.rindex("\x1b[?25l")
    assert "litlogger" in (folder / "train.log").read_text()  # it has been said, but not there
    resumed = warm.run([*command, f"steps={done + 1}", "ckpt_path=last"], ROOT, environment, timeout=300)
    assert resumed.returncode == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f]|nan", resumed.stdout)
    (step,) = (line for line in resumed.stdout.splitlines() if "  step " in line)
    assert OURS.match(step)
    assert f"report      {folder / 'report.html'}" in resumed.stdout.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, *wide(signal.SIGTERM)])
def test_what_is_stopped_before_its_first_step_leaves_nothing(tmp_path, number):
    command = ["src/train.py", *SMALL, f"paths.output_dir={tmp_path / 'run'}"]
    process = warm.popen()(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    next(line for line in process.stdout if line.startswith("watch it"))
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("stopped; nothing has been trained\n", "")
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


#: One dry run, of a few sequences.
PLANNED = ["plan=true", "requires.gpu_memory_gib=80", "rollout.prompts_per_step=2", "rollout.group_size=2"]
PLANNED += ["planned.prompt=64", "planned.response=64"]


@pytest.mark.parametrize("asked", [["--help"], *wide(PLANNED)], ids=["--help", "plan=true"])
def test_output_that_nobody_reads_ends_the_program_without_a_word(asked):
    """As behind ``| head``: no traceback, and a shell's status for it."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "src/train.py", "experiment=pocket", *asked]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
