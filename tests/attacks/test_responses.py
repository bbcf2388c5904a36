"""Responses that are programs, scored by reasoning-gym's own scorers in the real pool, at each level of confinement."""

import json
import os
import re
import signal
import socket
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import reasoning_gym
from user_reward import runs_it

from oblr.errors import SettingError
from oblr.problem import Completion, Problem
from oblr.rewards import confinement, printed
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.lockdown import descendants, proportional
from oblr.rewards.pool import RewardPool
from oblr.rewards.reasoning_gym import ReasoningGymReward

LEVELS = [level for level in confinement.LEVELS if level != "limits"]
#: Tasks whose scorers run the answer as code.
TASKS = {
    **dict.fromkeys(("spiral_matrix", "binary_matrix", "string_insertion", "n_queens"), "[{}]"),
    **dict.fromkeys(("countdown", "puzzle24", "simple_integration", "intermediate_integration"), "[{}]"),
    "polynomial_multiplication": "[{}]",
    "codeio": "[{}]",
}
ENDED = Completion([1], [0.0], True)
SECRET = "hunter2-of-the-user"
GIB = 0.25


def asked(task="spiral_matrix"):
    """A problem of the task."""
    entry = reasoning_gym.create_dataset(task, size=1, seed=1)[0]
    return Problem(f"{task}/0", entry["question"], entry["answer"], entry)


def program(code):
    """A response that is a program; what it prints, or raises, is printed where the run shows it."""
    whole = (
        "import os, sys\nout = lambda *words: os.write(2, ('SAID ' + ' '.join(map(str, words)) + '\\n').encode())\n"
        f"try:\n{textwrap.indent(textwrap.dedent(code), '    ')}\n"
        "except BaseException as error:\n    out(repr(error))\n"
    )
    return f"Answer: [exec(bytes.fromhex('{whole.encode().hex()}').decode(), {{}})]"


GYM = ReasoningGymReward(AnswerFormat())


class Attacked:
    """A pool, and what its responses print."""

    def __init__(self, capsys, reward=GYM, **settings):
        self.capsys, self.text = capsys, ""
        self.pool = RewardPool(reward, workers=1, memory_gib=GIB, timeout=4.0, **settings)

    def run(self, *codes, problem=None):
        texts = [program(code) for code in codes]
        return self.say(*texts, problem=problem)

    def say(self, *texts, problem=None):
        problem = problem or asked()
        return self.pool.score([problem] * len(texts), texts, [ENDED] * len(texts))

    def heard(self, pattern="SAID .*", wait=5.0):
        """What the programs have said."""
        end = time.monotonic() + wait
        while True:
            self.text += self.capsys.readouterr().err
            found = re.findall(pattern, self.text)
            if found or time.monotonic() > end:
                return " ".join(one.removeprefix("SAID ") for one in found)
            time.sleep(0.02)


@pytest.fixture(scope="module")
def pools():
    """By level and reward, for all tests: it takes seconds to load reasoning-gym."""
    made = {}
    yield made
    for attacked in made.values():
        attacked.pool.close()


def prepared(pools, level, reward, capsys, monkeypatch):
    assert confinement.available(level), f"this machine has nothing for {level}: make attack installs it"
    monkeypatch.setattr(printed._reader, "left", printed.SHOWN)
    attacked = pools.setdefault((level, reward), Attacked(capsys, reward, level=level))
    attacked.capsys, attacked.text = capsys, ""
    attacked.say("Answer: 1")
    return attacked


@pytest.fixture(params=LEVELS)
def attacked(request, pools, capsys, monkeypatch):
    return prepared(pools, request.param, GYM, capsys, monkeypatch)


@pytest.fixture(params=LEVELS)
def users(request, pools, capsys, monkeypatch):
    """A reward of a user's, which may start processes."""
    return prepared(pools, request.param, runs_it, capsys, monkeypatch)


def processes(pool):
    return [pid for slot in pool.slots for pid in (slot.process.pid, *descendants(slot.process.pid))]


@pytest.mark.parametrize("task", TASKS)
def test_scorers(attacked, task, tmp_path, stopped):
    """An answer that is a shell command, to each scorer that evaluates answers."""
    target = tmp_path / "written"
    command = f"__import__('os').system('echo x > {target}; echo SAID $? >&2; echo x > ~/own && echo SAID ran >&2')"
    verdict = attacked.say("Answer: " + TASKS[task].format(command), problem=asked(task))[0]
    assert not target.exists()
    assert verdict.reward == 0
    if task == "codeio":
        stopped("this scorer does not run it, in this version")
    else:
        stopped(
            attacked.heard("cannot create.*|.*Read-only.*|.*Permission denied.*|.*nonexistent.*", wait=0.2)
            or "it may start no process, not even a shell"
        )


def test_no_file_is_written(attacked, tmp_path, stopped):
    """Writing, shortening, deleting and renaming files of a run, and changing who may read them."""
    folder = tmp_path / "run"
    folder.mkdir()
    file = folder / "checkpoint"
    file.write_text("precious")
    file.chmod(0o600)
    tries = [
        f"open({str(file)!r}, 'w')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"os.truncate({str(file)!r}, 0)",
        f"os.remove({str(file)!r})",
        f"os.rename({str(file)!r}, {str(tmp_path / 'away')!r})",
        f"os.chmod({str(file)!r}, 0o777)",
        f"os.utime({str(file)!r}, (0, 0))",
        f"os.link({str(file)!r}, 'link')",
        f"os.symlink('/etc/passwd', {str(tmp_path / 'link')!r})",
        f"os.mkdir({str(tmp_path / 'folder')!r})",
        f"__import__('shutil').rmtree({str(folder)!r})",
        f"open({str(Path(reasoning_gym.__file__))!r}, 'a')",
        f"os.open({str(file)!r}, os.O_RDONLY | os.O_TRUNC)",
    ]
    before = file.stat()
    attacked.run(*tries)
    after = file.stat()
    assert file.read_text() == "precious"
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoint", "run"]
    assert attacked.heard().count("Error(") == len(tries)
    stopped(attacked.heard().split("SAID")[0])


def test_no_network(attacked, tmp_path, stopped):
    """Sending to listeners on this machine: TCP, UDP, IPv6, Unix sockets with and without a file."""
    listeners, tries = [], []
    for family, kind, place in (
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        (socket.AF_UNIX, socket.SOCK_STREAM, f"\0attack-{os.getpid()}"),
        (socket.AF_UNIX, socket.SOCK_STREAM, str(tmp_path / "socket")),
        (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0attack-datagram-{os.getpid()}"),
    ):
        listener = socket.socket(family, kind)
        listener.bind(place)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        listeners.append(listener)
        tries.append(
            f"import socket\none = socket.socket({int(family)}, {int(kind)})\n"
            f"one.connect({listener.getsockname()!r})\none.send(b'x')\nout('sent')"
        )
    attacked.run(*tries)
    for listener in listeners:
        with pytest.raises(BlockingIOError):
            listener.accept() if listener.type == socket.SOCK_STREAM else listener.recv(1)
        listener.close()
    heard = attacked.heard()
    assert "sent" not in heard
    stopped(heard.split(") ")[0] + ")")


def test_no_secret_of_the_environment(capsys, monkeypatch, stopped):
    """Reading a token from the environment, its own and that of every process."""
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    for level in LEVELS:
        monkeypatch.setattr(printed._reader, "left", printed.SHOWN)
        attacked = Attacked(capsys, level=level)
        attacked.run(
            """
            seen = repr(dict(os.environ))
            for pid in (*range(1, 2000), RUN, os.getppid()):
                try:
                    seen += open(f'/proc/{pid}/environ').read()
                except OSError:
                    pass
            out(len(seen), *sorted(os.environ))
            out('found' if 'hunter2' in seen else 'not found')
            """.replace("RUN", str(os.getpid()))
        )
        assert attacked.heard("SAID (?:not )?found") == "not found"
        attacked.pool.close()
    stopped("the environment is " + attacked.heard("SAID [0-9].*").partition(" ")[2])


def test_no_secret_of_the_home_folder(capsys, monkeypatch, tmp_path, stopped):
    """Reading ~/.netrc, ~/.ssh and a token in ~/.cache, with the home folder itself on the path of code."""
    home = tmp_path / "home"
    places = [".netrc", ".ssh/id_rsa", ".cache/huggingface/token", ".config/secret", "work/.env"]
    for place in places:
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(SECRET)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "path", [*sys.path, str(home), str(home / "work")])
    for level in LEVELS:
        monkeypatch.setattr(printed._reader, "left", printed.SHOWN)
        attacked = Attacked(capsys, level=level)
        attacked.run(
            *(f"out('read', open({str(home / place)!r}).read())" for place in places),
            "out('mine', sorted(os.listdir(os.path.expanduser('~'))))",
        )
        assert attacked.heard("SAID mine.*") == "mine []"
        assert SECRET not in attacked.text
        assert len(re.findall("SAID (FileNotFoundError|PermissionError|NotADirectoryError)", attacked.text)) == len(
            places
        )
        attacked.pool.close()
    stopped(attacked.heard("SAID .*Error.*").split(") ")[0])


def test_a_bomb_of_processes(users, stopped):
    """Starting processes that start processes."""
    most = 0

    def watch():
        nonlocal most
        while not done.wait(0.005):
            most = max(most, len(processes(users.pool)))

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    users.say("Answer: 1")
    watcher.start()
    verdict = users.run(
        """
        import time
        end = time.monotonic() + 3
        for _ in range(8):  # 2 ** 8 processes would be left
            os.fork()
        time.sleep(max(0, end - time.monotonic()))
        """
    )[0]
    done.set()
    watcher.join()
    assert (verdict.outcome, verdict.reward) == ("error", 0)
    assert most < 2**11  # it is looked at every 0.02 s, and later where the cores are busy
    assert len(processes(users.pool)) <= 2
    stopped(verdict.problem)


def test_nothing_is_left_behind(users, tmp_path, stopped):
    """A process that detaches itself, twice forked and in a session of its own, and goes on."""
    verdict, after = users.run(
        """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                import time
                for _ in range(20):
                    time.sleep(0.1)
                out('lives')
            os._exit(0)
        os.wait()
        out('begun')
        """,
        "out('next', open('/proc/loadavg').read() if False else '')",
    )
    assert (verdict.outcome, after.outcome) == ("scored", "scored")
    assert users.heard("SAID begun")
    assert len(processes(users.pool)) <= 2  # what bwrap needs, and the worker
    time.sleep(2.5)
    assert users.heard("SAID lives", wait=0) == ""
    stopped("it ended with the response")


MEMORY = {
    "shared map": """
        import mmap
        held = mmap.mmap(-1, 4 << 30)
        for at in range(0, 4 << 30, 4096):
            held[at] = 1
            at % (64 << 20) or out('MiB', at >> 20)
        """,
    "shared maps of 128 MiB": """
        import mmap
        held = []
        for n in range(32):
            held.append(mmap.mmap(-1, 128 << 20))
            for at in range(0, 128 << 20, 4096):
                held[-1][at] = 1
            out('MiB', n * 128)
        """,
    "file in memory": """
        held = [os.memfd_create(str(n)) for n in range(64)]
        for n, one in enumerate(held):
            for part in range(64):
                os.write(one, bytes(1 << 20))
            out('MiB', n * 64)
        """,
    "sparse file": """
        import mmap
        with open(os.path.expanduser('~/sparse'), 'wb') as file:
            file.truncate(4 << 30)
        with open(os.path.expanduser('~/sparse'), 'r+b') as file:
            held = mmap.mmap(file.fileno(), 4 << 30)
        for at in range(0, 4 << 30, 4096):
            held[at] = 1
            at % (64 << 20) or out('MiB', at >> 20)
        """,
    "files of /dev/shm and the scratch folder": """
        for folder in ('/dev/shm', os.path.expanduser('~')):
            for n in range(64):
                try:
                    with open(f'{folder}/{n}', 'wb') as file:
                        for part in range(64):
                            file.write(bytes(1 << 20))
                    out('MiB', n * 64)
                except OSError as error:
                    out(repr(error))
                    break
        import time
        time.sleep(1)
        """,
    "eight processes": """
        for _ in range(3):
            os.fork()
        held = bytearray(200 << 20)
        for at in range(0, len(held), 4096):
            held[at] = 1
        import time
        time.sleep(2)
        out('MiB', 8 * 200)
        """,
    "shared memory of System V": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        at = libc.shmget(0, ctypes.c_size_t(2 << 30), 0o1600)
        out(f'shmget gave OSError({ctypes.get_errno()})')
        if at >= 0:
            ctypes.memset(libc.shmat(at, None, 0), 1, 2 << 30)
            out('MiB', 2048)
        """,
}


@pytest.mark.parametrize("way", MEMORY)
def test_memory(users, way, stopped):
    """Taking 4 GiB where 0.25 are allowed."""
    users.say("Answer: 1")
    most = 0

    def watch():
        nonlocal most
        while not done.wait(0.01):
            most = max(most, sum(map(proportional, processes(users.pool))))

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    before = sum(map(proportional, processes(users.pool)))
    watcher.start()
    verdict = users.run(MEMORY[way])[0]
    done.set()
    watcher.join()
    assert most - before < (GIB + 0.4) * 2**30
    steps = [int(one) for one in re.findall(r"MiB (\d+)", users.heard() + users.text)]
    assert max(steps, default=0) < 1024
    stopped(verdict.problem or users.heard("SAID .*Error.*") or "the time limit")


def test_endless_output(attacked, stopped):
    """Printing without end, and control sequences that forge lines of the run."""
    verdict = attacked.run(
        r"""
        os.write(2, b'\x1b[2K\x1b[1Aerror: forged\n')
        while True:
            os.write(1, b'x' * 65536)
        """
    )[0]
    assert verdict.outcome == "timeout"
    attacked.heard("more than is shown")
    assert "\x1b" not in attacked.text
    assert len(attacked.text) < 2 * printed.SHOWN
    stopped(f"{verdict.problem}; of what is printed {printed.SHOWN} bytes are shown")


def test_later_responses(attacked, stopped):
    """Replacing the scorer, so that every later response scores 1, and leaving a module for it to import."""
    problem = asked()
    verdicts = attacked.say(
        program(
            """
            import oblr.rewards.base, oblr.rewards.workers as workers
            import reasoning_gym.algorithmic.spiral_matrix as one
            one.SpiralMatrixDataset.score_answer = lambda *_: 1.0
            oblr.rewards.base.score = workers.score = lambda *_: oblr.rewards.base.Score(1.0, {})
            open(os.path.expanduser('~/sitecustomize.py'), 'w').write('raise SystemExit')
            out('patched')
            """
        ),
        "Answer: wrong",
        f"Answer: {problem.answer}",
    )
    assert attacked.heard("SAID patched")
    assert [verdict.reward for verdict in verdicts[1:]] == [0.0, 1.0]
    assert attacked.say("Answer: wrong as well")[0].reward == 0
    stopped("each response has a process of its own, made from one that has met none")


def test_other_processes(attacked, stopped):
    """Killing the process that started it, and all that it can name, and writing into their memory."""
    attacked.say("Answer: 1")
    before = processes(attacked.pool)
    attacked.run(
        """
        for pid in (os.getppid(), 1, *range(2, 50), RUN):
            if pid not in (os.getpid(), 0):
                try:
                    os.kill(pid, 9)
                except OSError as error:
                    out(repr(error))
        """.replace("RUN", str(os.getpid())),
        """
        parent = os.getppid() or 1
        with open(f'/proc/{parent}/mem', 'r+b') as memory:
            out('opened')
        """,
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, os.getppid() or 1, 0, 0) == 0:
            out('attached')
        raise OSError(ctypes.get_errno(), 'ptrace')
        """,
        """
        import resource
        resource.prlimit(os.getppid() or 1, resource.RLIMIT_AS, (1, 1))
        out('limited')
        """,
    )
    heard = attacked.heard("SAID .*ptrace.*")
    assert not {"opened", "attached", "limited"} & set(attacked.text.split())
    assert processes(attacked.pool)[: len(before)] == before
    assert attacked.say(f"Answer: {asked().answer}")[0].reward == 1
    stopped(heard)


def test_what_is_sent_back(attacked, tmp_path, stopped):
    """Sending the run a pickle that runs a command when it is read, by every way out of the process."""
    target = tmp_path / "ran"
    verdict, after = attacked.run(
        f"""
        import pickle, struct
        class Bomb:
            def __reduce__(self):
                return os.system, ({f"touch {target}"!r},)
        sent = pickle.dumps(Bomb())
        for fd in range(3, 100):
            for message in (struct.pack('!i', len(sent)) + sent, sent + b'\\n'):
                try:
                    os.write(fd, message)
                except OSError:
                    pass
        os._exit(0)
        """,
        "out('next')",
    )
    assert not target.exists()
    assert (verdict.outcome, verdict.reward) == ("error", 0)
    assert after.outcome == "scored"
    stopped(verdict.problem)


def test_the_verdict_of_another(attacked, stopped):
    """Writing many verdicts, so that those of later responses are among them."""
    forged = json.dumps([1.0, {}, "scored", ""])
    verdicts = attacked.say(
        program(
            f"""
            for fd in range(3, 100):
                try:
                    os.write(fd, b'{forged}\\n' * 100)
                except OSError:
                    pass
            """
        ),
        "Answer: wrong",
        "Answer: also wrong",
    )
    assert [verdict.reward for verdict in verdicts[1:]] == [0.0, 0.0]
    stopped("each response has a pipe of its own, of which one line is read")


@pytest.mark.parametrize(
    "said",
    [
        *('[NaN, {}, "scored", ""]', '[1e999, {}, "scored", ""]', '["1", {}, "scored", ""]'),
        *('[true, {}, "scored", ""]', '[1, {"a": [1]}, "scored", ""]', '[0, {}, "killed", ""]'),
        *("[" * 100_000, '{"__class__": 1}', "\\xff\\xfe"),
    ],
    ids=lambda said: said[:24],
)
def test_no_verdict_but_a_number(pools, capsys, monkeypatch, said, stopped):
    """Sending as a verdict what is none."""
    attacked = prepared(pools, LEVELS[-1], runs_it, capsys, monkeypatch)
    verdict = attacked.run(
        f"for fd in range(3, 9):\n    try: os.write(fd, b'''{said}\\n''')\n    except OSError: pass"
    )[0]
    assert (verdict.outcome, verdict.reward) == ("error", 0)
    stopped(verdict.problem)


@pytest.mark.parametrize(
    "code",
    [
        "os.kill(os.getpid(), 9)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
        "import ctypes; ctypes.CDLL(None).prctl(22, 1, 0, 0, 0)",
        "import fcntl; r, w = os.pipe(); fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, 8, os.getpid())\n"
        "fcntl.fcntl(r, 4, 0o20000); os.write(w, b'x')",
        "if os.fork() == 0: os.kill(os.getppid(), 9)\nelse: os.wait()",
    ],
    ids=["kill", "processor time", "strict mode", "signal of a file", "by its child"],
)
def test_it_cannot_look_killed_from_outside(attacked, code, stopped):
    """Dying as by a machine out of memory, to end the run or to be left out of it."""
    attacked.run(code)
    assert attacked.say(f"Answer: {asked().answer}")[0].reward == 1
    stopped(attacked.heard("SAID .*", wait=1.0) or "the limit on time")


def test_nothing_runs_where_nothing_confines(monkeypatch, tmp_path, stopped):
    """A machine with neither bwrap nor Landlock, and a reward that evaluates."""
    target = tmp_path / "ran"
    pool = RewardPool(ReasoningGymReward(AnswerFormat()), workers=1, level="limits")
    answer = f"Answer: [__import__('os').system('touch {target}')]"
    with pytest.raises(SettingError, match="bubblewrap") as refused:
        pool.score([asked()], [answer], [ENDED])
    chain = asked("chain_sum")
    assert pool.score([chain], [f"Answer: {chain.answer}"], [ENDED])[0].reward == 1
    pool.close()
    assert not target.exists()
    stopped(refused.value)


def test_without_bwrap_on_the_path(monkeypatch, tmp_path, stopped):
    """A machine without bwrap, and one where it is there and fails."""
    confinement.available.cache_clear()
    for program in (None, "#!/bin/sh\nexit 1\n"):
        if program:
            (tmp_path / "bwrap").write_text(program)
            (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        confinement.available.cache_clear()
        assert confinement.best() == "landlock"
    pool = RewardPool(ReasoningGymReward(AnswerFormat()), workers=1)
    target = tmp_path / "ran"
    pool.score([asked()], [program_text := f"Answer: [open({str(target)!r}, 'w')]"], [ENDED])
    pool.close()
    confinement.available.cache_clear()
    assert program_text
    assert not target.exists()
    stopped(pool.words)


def test_the_worker_goes_when_the_run_does(attacked, stopped):
    """Holding on to a process when the run has ended."""
    attacked.say("Answer: 1")
    pids = processes(attacked.pool)
    threading.Timer(1.0, lambda: os.kill(pids[0], signal.SIGKILL)).start()  # bwrap, or the worker itself
    verdict = attacked.run("import time; time.sleep(2); out('slept')")[0]
    assert verdict.outcome == "scored"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids if pid not in processes(attacked.pool))
    stopped("a killed worker takes all that it started with it, and the response is scored again")
