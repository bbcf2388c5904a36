"""Scripts of ``src/`` in processes of their own that have their imports already.

What they import takes most of the seconds of a run that is small, and is the same for all of them. Each test process
has a nursery that imports it once (`warm_imports.py`) and is forked for every run. `tests/repository/test_warm.py`
holds this against cold processes. What a run starts of the project's scripts itself, such as its other ranks, is forked
as well.
"""

import atexit
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import nursery


@functools.cache
def popen() -> type[subprocess.Popen]:
    """What starts scripts for this process: its nursery is a new interpreter, which imports first.

    A process that came from a nursery has one already.
    """
    if subprocess.Popen.__module__ == nursery.__name__:
        return subprocess.Popen
    asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen([sys.executable, __file__, str(asked.fileno()), str(os.getpid())], pass_fds=[asked.fileno()])
    asked.close()
    return nursery.popen(asking)


def run(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Run ``command``, a script and its arguments, in the folder ``cwd`` with just this environment.

    Raises:
        subprocess.TimeoutExpired: it has been killed, as it took longer than ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as said, err.open("wb") as complained:
            process = popen()([sys.executable, *command], cwd=cwd, env=environment, stdout=said, stderr=complained)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise subprocess.TimeoutExpired(error.cmd, timeout, out.read_bytes(), err.read_bytes()) from None
        return subprocess.CompletedProcess(list(command), process.returncode, out.read_text(), err.read_text())


def main(asked: int, parent: int) -> NoReturn:
    """Be a test process's nursery."""
    probe = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    paths = json.loads(subprocess.run(probe, env=bare, check=True, capture_output=True, text=True).stdout)
    import warm_imports  # noqa: F401

    nursery.tend(socket.socket(fileno=asked), parent, lambda request: _become(*request, paths))


def _become(command: list[str], cwd: str, environment: dict[str, str], paths: list[str]) -> NoReturn:
    """Become what ``python <command>`` is once it has imported, and end as it ends."""
    from lightning.fabric.utilities import rank_zero

    if command[:2] != ["-P", "-c"]:  # a process that scores has no other beside it, which it could not end
        nursery.open_beside(lambda request: _become(*request, paths))
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    warnings.simplefilter("ignore")  # as PYTHONWARNINGS says, which is read when Python starts
    rank_zero.rank_zero_only.rank = rank_zero._get_rank() or 0  # which Lightning reads when it is imported
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if command[:2] == ["-P", "-c"]:
        sys.argv[:], beside = ["-c", *command[3:]], []
        code = compile(command[2], "<string>", "exec")
    else:
        program = Path(command[0]).resolve()
        sys.argv[:], beside = command, [str(program.parent)]
        main.__file__ = str(program)
        code = compile(program.read_text(), program, "exec")
    sys.path[:] = [*beside, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *paths]
    status = 0
    try:
        exec(code, vars(main))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    # As the interpreter ends, but for taking apart all that it holds, which takes seconds: threads and handlers of
    # Python's, then those of libraries. multiprocessing would leave both out.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.PyDLL(None).exit(status)
    raise AssertionError("exit does not return")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
