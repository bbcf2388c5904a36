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
#: Who compiles, by the variable that says where to: its folder.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}


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


def kept_caches() -> dict[str, str]:
    """Variables by which torch, Triton, vLLM, FlashInfer and CUDA keep theirs there, where nobody has set them."""
    return {name: os.environ.get(name) or str(caches() / folder) for name, folder in CACHES.items()}


def keep_caches() -> None:
    """Have libraries do so: by default the place is ``/tmp``, where others write, or anywhere in the user's home."""
    os.environ |= kept_caches()
