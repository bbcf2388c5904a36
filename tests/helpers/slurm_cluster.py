"""A real SLURM, private to a test: its own daemons, ports, keys and folders, nothing of the system's.

Debian's daemons take one node a machine, which they tell by its name. So each of several nodes has a host name of its
own (a UTS namespace, which takes root) and an address of its own, 127.0.0.1, 127.0.0.2 and so on: what listens at one
is not heard at another. They share the processors, the files and all else.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("slurm-wlm", "munge")
COMMANDS = ("sbatch", "srun", "scontrol", "scancel", "squeue")
#: Debian's names; the daemons have this ending where its alternatives are not set up.
DAEMONS, ENDING = ("munged", "slurmctld", "slurmd", "slurmstepd"), "-wlm"
UNDER_WAY = {"PENDING", "RUNNING", "COMPLETING"}
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# A job that is queued again waits for as long as credentials last.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1
# A node has two processors, whatever the machine has.
SlurmdParameters=config_overrides
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeAddr=127.0.0.{number} Port={port} CPUs=2 State=UNKNOWN"
#: Linux's flag for a host name of its own.
CLONE_NEWUTS = 0x04000000


class UnavailableError(Exception):
    """SLURM is neither installed nor to be had."""


@dataclass(frozen=True)
class Installation:
    """Where SLURM's programs are; ``root`` is a folder that Debian's packages were unpacked into, None the system."""

    root: Path | None = None

    @property
    def folders(self) -> list[str]:
        return [str((self.root or Path("/")) / folder) for folder in ("usr/sbin", "usr/bin", "sbin")]

    @property
    def plugins(self) -> Path | None:
        return next((self.root / "usr/lib").rglob("select_cons_tres.so")).parent if self.root else None

    @property
    def environment(self) -> dict[str, str]:
        if self.root is None:
            return {"PATH": ":".join([os.environ["PATH"], *self.folders])}
        libraries = [str(path) for path in (self.plugins, *(self.root / "usr/lib").glob("*-linux-gnu*"))]
        return {"PATH": ":".join([*self.folders, os.environ["PATH"]]), "LD_LIBRARY_PATH": ":".join(libraries)}

    @property
    def no_cgroups(self) -> str:
        """The plugin that needs nothing of a container; SLURM before 23.02 cannot do without one."""
        said = subprocess.run([str(self.find("slurmd")), "-V"], env=os.environ | self.environment, capture_output=True)
        version = tuple(map(int, re.findall(rb"\d+", said.stdout)[:2]))
        return "disabled" if version >= (23, 2) else "cgroup/v1"

    def find(self, program: str) -> str | None:
        path = ":".join(self.folders) if self.root else self.environment["PATH"]
        return shutil.which(program, path=path) or shutil.which(program + ENDING, path=path)


def installation(cache: Path) -> Installation:
    """The system's SLURM, or else Debian's packages, unpacked in ``cache`` and installed nowhere.

    Raises:
        UnavailableError: neither is to be had.
    """
    missing = [name for name in (*DAEMONS, *COMMANDS) if Installation().find(name) is None]
    if not missing:
        return Installation()
    root = cache / "slurm"
    if not root.exists():
        try:
            unpack(root)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnavailableError(
                f"no {', '.join(missing)} here, and none to be fetched: apt-get install {' '.join(PACKAGES)}"
            ) from error
    return Installation(root)


def unpack(root: Path) -> None:
    """Fetch Debian's packages, with what they need and the system lacks, and unpack them into ``root``."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        folder = Path(name)
        for below in ("lists/partial", "cache/archives/partial", "root"):
            (folder / below).mkdir(parents=True)
        options = [f"Dir::State::lists={folder}/lists", f"Dir::Cache={folder}/cache", "Debug::NoLocking=1"]
        apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
        subprocess.run([*apt, "update"], check=True, capture_output=True, timeout=60)
        download = [*apt, "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES]
        subprocess.run(download, check=True, capture_output=True, timeout=120)
        for package in (folder / "cache" / "archives").glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True, capture_output=True)
        (folder / "root").rename(root)


class Cluster:
    """Runs SLURM's commands on the private cluster."""

    def __init__(self, environment: dict[str, str]):
        self.environment = environment

    def __call__(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            command, env=os.environ | self.environment, cwd=cwd, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, script: str, *overrides: str, cwd: Path, options: tuple[str, ...] = ()) -> str:
        return self("sbatch", "--parsable", *options, script, *overrides, cwd=cwd)

    def jobs(self, job: str) -> list[dict[str, str]]:
        """What SLURM says of a job, or of every task of an array, in their order."""
        lines = self("scontrol", "--oneliner", "show", "job", job).splitlines()
        facts = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
        return sorted(facts, key=lambda fact: int(fact.get("ArrayTaskId", "0").partition("-")[0]))

    def wait(self, job: str, timeout: float = 300) -> list[dict[str, str]]:
        """Until it has ended."""
        deadline = time.monotonic() + timeout
        while UNDER_WAY & {fact["JobState"] for fact in self.jobs(job)}:
            assert time.monotonic() < deadline, [fact["JobState"] for fact in self.jobs(job)]
            time.sleep(0.5)
        return self.jobs(job)


@contextmanager
def cluster(found: Installation, names: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Start it; nothing of it is left afterwards.

    Args:
        names: of several nodes; without them there is one, called as this machine.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))  # sockets need short paths
        folder.chmod(0o755)  # or munge calls its socket inaccessible
        if found.root is not None:  # a clone's path may have spaces, and SLURM's configuration may not
            (folder / "slurm").symlink_to(found.root)
            found = replace(found, root=folder / "slurm")
        host = socket.gethostname().partition(".")[0]
        names = names or (host,)
        for name in ("state", *(f"spool-{name}" for name in names)):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        configuration = folder / "slurm.conf"
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={found.no_cgroups}\n")
        nodes = [NODE.format(name=name, number=k, port=free_port()) for k, name in enumerate(names, start=1)]
        facts = {"host": host, "user": os.getuid(), "folder": folder, "nodes": "\n".join(nodes)}
        text = CONFIGURATION.format(**facts, controller_port=free_port())
        configuration.write_text(text + (f"PluginDir={found.plugins}\n" if found.plugins else ""))
        private = Cluster(found.environment | {"SLURM_CONF": str(configuration)})
        stack.callback(kill_remains, configuration)

        def daemon(name: str, *options: str, node: str = host) -> None:
            def prepare() -> None:
                end_with_parent()
                if node != host:
                    be_called(node)

            log = stack.enter_context((folder / f"{name}-{node}.log").open("w"))
            process = subprocess.Popen(
                [str(found.find(name)), *options],
                env=os.environ | private.environment,
                stdout=log,
                stderr=log,
                preexec_fn=prepare,
            )
            stack.callback(end, process)

        files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "key-file", "pid-file")]
        daemon("munged", "--foreground", *files, f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed")
        until(lambda: (folder / "munge.socket").exists(), folder)
        daemon("slurmctld", "-D", "-c")
        for name in names:
            daemon("slurmd", "-D", "-c", "-d", str(found.find("slurmstepd")), node=name)
        stack.callback(cancel_jobs, private)
        until(lambda: private("scontrol", "show", "node").count("State=IDLE") == len(names), folder)
        yield private


def checkout(folder: Path) -> Path:
    """One whose ``runs`` are the test's own, and whose files may change while jobs run."""
    for name in ("src", "callbacks", "conf", "slurm", "models/pocket"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text((ROOT / ".gitignore").read_text() + "/.venv\n")
    (folder / ".venv").symlink_to(sys.prefix)
    git = ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "code"]):
        subprocess.run([*git, *command], check=True)
    return folder


def said(run: Path) -> str:
    """What a job wrote into its run folder."""
    return "".join(path.read_text() for path in run.glob("slurm-*.log"))


def wait_for(happened, what: str, timeout: float = 180) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(ready, folder: Path, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            if ready():
                return
        except AssertionError:  # the controller does not answer yet
            pass
        if time.monotonic() > deadline:
            logs = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in folder.glob("*.log"))
            raise TimeoutError(f"SLURM does not start\n{logs}")
        time.sleep(0.2)


def end_with_parent() -> None:
    """The kernel ends a daemon whose test is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def be_called(node: str) -> None:
    """This process, and whatever it starts, is on a machine of that name."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "no host name of its own")
    socket.sethostname(node)


def end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cancel_jobs(private: Cluster, timeout: float = 15) -> None:
    private("scancel", f"--user={os.getuid()}")
    deadline = time.monotonic() + timeout
    while private("squeue", "--noheader") and time.monotonic() < deadline:
        time.sleep(0.2)


def kill_remains(configuration: Path) -> None:
    """Kill whatever was started with this configuration and has not ended: steps and tasks outlive their daemon."""
    mark = f"SLURM_CONF={configuration}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if mark in environment.split(b"\0"):
            os.kill(int(process.name), signal.SIGKILL)
