"""Places on this machine that no other user may enter, for what would else lie in everybody's."""

import atexit
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

#: Characters that the path of a folder may have in which libraries make sockets: of such a path there are 108 at most.
SHORT = 60


def private_folder() -> Path:
    """A new folder that its user alone may enter, of a path so short that sockets can lie in it."""
    found = Path(tempfile.mkdtemp(prefix="oblr-"))
    if len(str(found)) <= SHORT:
        return found
    found.rmdir()
    return Path(tempfile.mkdtemp(prefix="oblr-", dir="/tmp"))


@cache
def of_process() -> Path:
    """The one of this process, which goes with it."""
    folder, owner = private_folder(), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def caches() -> Path:
    """What libraries compile, for the next process of this user: code that is run must not be anybody else's."""
    try:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "oblr")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.stat()
    except (OSError, RuntimeError):  # nobody's home
        return of_process()
    return place if found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022 else of_process()


def keep_caches() -> None:
    """Have torch and what it compiles with keep theirs there: by default it is a known path in everybody's ``/tmp``."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(caches() / "torchinductor"))
