"""A newcomer's first hour: clone, and type what README and pages say, in their order, in a bare shell.

    python benchmarks/first_hour.py [--quick]

README's commands are typed as they are printed, into a shell whose environment is empty but for a home, the system's
programs and the way to package indices: `make demo` installs first. Then those of the pages, each shortened to two
steps of four prompts. What cannot be tried on any machine is named with its reason, and
`tests/repository/test_pages.py` composes it. Each command has to end well, to say what its kind of command says, and to
name no file that is not there; the report opens in Chromium.

``--quick`` installs nothing: the demo, one change and what looks at them, shortened, in this environment.
"""

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from figures import ROOT, Figure, asked_to_be_quick, at_most, write
from pasted import code, commands

SHORT = "steps=2 rollout.prompts_per_step=4 data.held_out.size=8"
#: Of the transformers engine, which starts sooner than vLLM; nothing else is to be tried where all is quick.
QUICK = f"{SHORT} rollout.engine=hf rollout.max_new_tokens=32"
#: Why some commands are not typed: the first pattern that is found in them.
LEFT_OUT = {
    r"^make (soak|mutants)": "takes long: continuous integration runs a part",
    r"^make (?!demo)": "continuous integration runs it",
    r"^sbatch ": "needs SLURM: make test-slurm",
    r"^oblr-": "needs the package: make test-wheel",
    r"plan=true": "",
    r"_qwen3|smollm2|gsm8k": "needs a GPU, or weights or problems from the hub",
}
#: What a command says when it has done what it is for.
SAYS = {
    "plan=true": r"fits: ",
    "ckpt_path=last": r"resuming ",
    "compare=": r"\| difference",
    "src/eval.py": r"\| (chain_sum|local)[ |]",
    "--table": r"baseline=",
    "experiment=seed_": r"report {6}",
    "src/": r"report {6}\S+report\.html",
    "make demo": r"report {6}\S+report\.html",
}
#: What serves until it is stopped, and on which port.
SERVING = {"tensorboard": 6006, "src/serve.py": 8000}
END = "@@ ended with"


class Shell:
    """A shell with a bare environment, in which commands are typed."""

    def __init__(self, folder: Path, **environment: str):
        path = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin"
        network = re.compile("PIP|CERT|SSL|CA_BUNDLE|PROXY", re.IGNORECASE)
        index = {name: value for name, value in os.environ.items() if network.search(name)}
        if (settings := Path.home() / ".config" / "pip" / "pip.conf").exists():
            index["PIP_CONFIG_FILE"] = str(settings)
        bare = {"HOME": str(folder.parent), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", **index, **environment}
        self.shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=bare,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, command: str) -> tuple[int, str, float]:
        """Its status, what it has said, and its seconds."""
        keys, screen = self._ends()
        start = time.perf_counter()
        keys.write(f'{command}\necho "{END} $?"\n')
        keys.flush()
        said = []
        for line in screen:
            if line.startswith(END):
                return int(line.removeprefix(END)), "".join(said), time.perf_counter() - start
            said.append(line)
        raise RuntimeError(f"{command} has ended the shell: {''.join(said)}")

    def _ends(self) -> tuple[IO[str], IO[str]]:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        return self.shell.stdin, self.shell.stdout

    def close(self) -> None:
        for end in self._ends():
            end.close()
        self.shell.wait()


def why_not(command: str) -> str:
    return next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, command)), "")


def went_well(command: str, status: int, said: str, folder: Path) -> bool:
    """Whether it has ended as this kind of command does; if not, the screen has all that it said."""
    wanted = next((pattern for words, pattern in SAYS.items() if words in command), "")
    # A checkpoint that later ones have followed may have gone, and what has not been started is not there.
    there = re.sub(r"^resuming .*|^.*: not started, .*", "", said, flags=re.MULTILINE)
    missing = [path for path in re.findall(rf"(?<=\s)({folder}/\S+?)/?(?=\s)", there) if not Path(path).exists()]
    if status or not re.search(wanted, said) or "Traceback" in said or missing:
        print(f"{command}: status {status}, missing {missing}\n{said}", flush=True)
        return False
    return True


def port_of(command: str) -> int | None:
    """Where it serves until it is stopped; None: it ends by itself."""
    return next((port for words, port in SERVING.items() if words in command), None)


def begun(shell: Shell, command: str, port: int) -> float:
    """Start what serves; seconds until it listens."""
    start = time.perf_counter()
    shell.type(f"{command} > served.log 2>&1 &")
    while time.perf_counter() - start < 120:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return time.perf_counter() - start
        time.sleep(0.2)
    raise RuntimeError(f"{command} does not listen on port {port}")


def stop(shell: Shell) -> None:
    shell.type("kill %1; wait")


def opened(report: Path) -> float:
    """Milliseconds until a browser shows a report; raises where its console has an error."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page, errors = browser.new_page(), list[str]()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        start = time.perf_counter()
        page.goto(report.as_uri(), wait_until="load")
        page.wait_for_selector("canvas")
        milliseconds = 1000 * (time.perf_counter() - start)
        browser.close()
    if errors:
        raise RuntimeError(f"{report}: {errors}")
    return milliseconds


#: The function that docs/change.md names: rewards of a range of its own.
MY_REWARD = """\
def my_reward(problem, text, completion):
    return float(text.strip().endswith(problem.answer)) - 1
"""


def own_files(folder: Path) -> None:
    """What the pages take for granted that a reader has: problems, policies, evaluations, and code of one's own."""
    terms = itertools.product(range(2, 8), range(2, 8), "+-", (1, 2, 3))
    sums = [f"{a} + {b} {sign} {c}" for a, b, sign, c in terms]
    rows = [{"problem": f"{one} =", "answer": str(eval(one)), "level": i % 2} for i, one in enumerate(sums)]
    for name, part in (("train", rows[:-40]), ("test", rows[-40:-8]), ("my", rows[-8:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    for name in "AB":
        (folder / name).symlink_to("models/pocket")
    for name, text in code(folder / "docs" / "own.md"):
        (folder / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mine" / name).write_text(text)
    (folder / "my_module.py").write_text(MY_REWARD)


#: Typed before the pages' commands: the files and folders that those call A and B.
BEFORE = (
    "python -c \"import pandas; pandas.read_json('test.jsonl', lines=True).to_parquet('test.parquet')\"",
    *(f"python src/eval.py model={name} limit=4 paths.output_dir=runs/eval/{name}" for name in "AB"),
)


def shortened(command: str, how: str) -> str:
    if "src/train.py" in command and "plan=true" not in command:
        steps = how.replace("steps=2", "steps=4") if "ckpt_path" in command else how
        return f"{command} {steps}"
    if "src/eval.py model" not in command:
        return command
    engine = " rollout.engine=hf" if how == QUICK else ""
    return f"{command} limit=4{engine}"


@contextmanager
def clone(quick: bool) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "oblr-po"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
        if quick:
            environment(folder)
        yield folder


def environment(folder: Path) -> None:
    """What ``make`` takes for installed: the clone's code, and all else from where this script has it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / ".venv")], check=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder / ".venv")}))
    (own / "beside.pth").write_text(f"{folder / 'src'}\n{folder}\n{sysconfig.get_path('purelib')}\n")
    (folder / ".venv" / "bin" / "tensorboard").symlink_to(Path(sys.executable).with_name("tensorboard"))
    (folder / ".venv" / f".installed-{'cuda' if shutil.which('nvidia-smi') else 'cpu'}").touch()


def first_hour(folder: Path, quick: bool) -> Iterator[Figure]:
    shell = Shell(folder, **({"ARGS": QUICK} if quick else {}))
    minutes, typed, failed, left_out, report = 0.0, 0, 0, [], ""
    first = r"(PYTHONPATH=\S+ )?(python|make|sbatch|source|tensorboard|oblr-)"
    for command in commands([folder / "README.md"], first):
        if why := why_not(command):
            left_out.append((command, why))
            continue
        if quick and "src/train.py" in command and "baseline=rloo" not in command:
            continue
        if port := port_of(command):
            seconds = begun(shell, command, port)
            with urllib.request.urlopen(f"http://localhost:{port}/") as page:
                assert b"TensorBoard" in page.read()
            stop(shell)
        else:
            given = shortened(command, QUICK) if quick else command
            status, said, seconds = shell.type(given)
            if command.startswith(("make", "python")):
                failed += not went_well(command, status, said, folder)
            if "src/report.py" in command and (found := re.search(r"report {6}(\S+)", said)):
                report = found[1]
        print(f"{seconds:6.1f} s  {command}", flush=True)
        minutes, typed = minutes + seconds / 60, typed + 1
        if command == "make demo" and not quick:
            yield Figure("make demo, from nothing", seconds / 60, "min")
        if "baseline=rloo" in command and not quick:
            yield at_most("from the clone to a changed baseline", minutes, "min", 30)
    if report:  # else its command has failed, and counts as such
        yield Figure("report of all runs, until a browser shows it", opened(Path(report)), "ms")
    if not quick:
        yield at_most("from the clone through all of README", minutes, "min", 60)
    yield Figure("README's commands typed", typed, "")
    if not quick:
        own_files(folder)
        serving = False
        readme = commands([folder / "README.md"], first)
        rest = [one for one in commands(sorted((folder / "docs").glob("*.md")), first) if one not in readme]
        for command in [*BEFORE, *(one for one in dict.fromkeys(rest) if "tensorboard" not in one)]:
            if why := why_not(command):
                left_out.append((command, why))
                continue
            if port := port_of(command):  # for the command that follows
                seconds = begun(shell, command, port)
            else:
                status, said, seconds = shell.type(shortened(command, SHORT))
                failed += command not in BEFORE and not went_well(command, status, said, folder)
                if serving:
                    stop(shell)
            serving = port is not None
            typed += command not in BEFORE
            print(f"{seconds:6.1f} s  {command}", flush=True)
        yield Figure("README's and the pages' commands typed", typed, "")
    shell.close()
    for command, why in left_out:
        print(f"not typed: {command}: {why}")
    yield Figure("not typed", len(left_out), "")
    yield at_most("commands that did not do what they are for", failed, "", 0)


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    with clone(quick) as folder:
        write("first_hour-quick" if quick else "first_hour", list(first_hour(folder, quick)))


if __name__ == "__main__":
    main()
