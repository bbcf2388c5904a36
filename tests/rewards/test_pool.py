"""The processes that score, with rewards that do their worst."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cases import wide

from oblr.errors import RunError, SettingError
from oblr.problem import Completion, Problem
from oblr.rewards.answer import AnswerFormat, ExactReward
from oblr.rewards.confinement import best
from oblr.rewards.lockdown import descendants
from oblr.rewards.math import MathReward
from oblr.rewards.pool import RewardPool
from oblr.rewards.scoring import TRIES
from oblr.rewards.verdicts import Verdict

HERE = Path(__file__).parent  # not from conftest, which loads torch: the processes that score load this file
ENDED = Completion([1], [0.0], True)


def obedient(problem, text, completion):
    """Does what the response says."""
    match text.partition(" "):
        case "hang", _, _:
            while True:
                pass
        case "sleep", _, _:
            time.sleep(60)
        case "doze", _, seconds:
            time.sleep(float(seconds))
            return 1.0
        case "hold", _, _:
            9**9**9  # in C, with the interpreter's lock
        case "segfault", _, _:
            ctypes.string_at(0)
        case "recurse", _, _:
            return obedient(problem, text, completion)
        case "eat", _, _:
            return float(len(bytearray(2**30)))
        case "exit", _, _:
            sys.exit(3)
        case "leave", _, _:
            os._exit(4)
        case "interrupt", _, _:
            raise KeyboardInterrupt
        case "thread", _, number:
            thread = threading.Thread(target=lambda: [][0])
            thread.start()
            thread.join()
            return float(number)
        case "raise", _, words:
            raise ValueError(words)
        case "nan", _, _:
            return float("nan")
        case "parts", _, values:
            return {f"part {i}": float(value) for i, value in enumerate(values.split())}
        case "pid", _, _:
            return float(os.getpid())
        case "length", _, _:
            return float(len(text))
        case _, _, number:
            return float(number)


def score(pool, texts):
    verdicts = pool.score([Problem(str(i), "?", "!") for i in range(len(texts))], texts, [ENDED] * len(texts))
    return [verdict.reward for verdict in verdicts], [verdict.outcome for verdict in verdicts]


@pytest.fixture(scope="module")
def pool():
    pool = RewardPool(obedient, workers=2, timeout=4.0, memory_gib=0.25)  # machines stand still for a second or two
    score(pool, ["give 0"])
    yield pool
    pool.close()


def test_the_worst_gets_nothing_and_the_rest_its_due_in_order(pool, caplog):
    before = pool.timeouts, pool.errors
    worst = ["hang", "sleep", "hold", "segfault", "recurse", "eat", "exit", "leave", "interrupt", "raise x", "raise y"]
    worst += ["nan"]
    texts = [text for i, bad in enumerate(worst) for text in (f"give {i}", bad, f"give {-i}")]
    with caplog.at_level(logging.WARNING, "oblr.rewards.pool"):
        rewards, outcomes = score(pool, texts)
    assert rewards == [reward for i in range(len(worst)) for reward in (i, 0.0, -i)]
    assert outcomes[1::3] == ["timeout"] * 3 + ["error"] * 9
    assert set(outcomes[::3] + outcomes[2::3]) == {"scored"}
    assert (pool.timeouts - before[0], pool.errors - before[1]) == (3, 9)
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "problem 1 is scored 0 (timeout): no reward within 4 s" in said
    for word in (
        "SIGSEGV",
        "RecursionError",
        "MemoryError",
        "SystemExit(3)",
        "status 4",
        "KeyboardInterrupt",
        "ValueError",
    ):
        assert said.count(word) == 1
    assert said.count("obedient") == len(caplog.records) - 1  # all but the time limit's
    score(pool, ["raise again"])
    assert len(caplog.records) == said.count("\n") + 1


def test_a_thread_of_the_reward_fails_in_a_line(pool, caplog, capfd):
    assert score(pool, ["thread 2"]) == ([2.0], ["scored"])
    (record,) = caplog.records
    assert "a thread of obedient raised IndexError" in record.getMessage()
    assert capfd.readouterr().err == ""


def started(pool):
    """Ids of all processes of a pool, as this process knows them: of each worker what started it, it, and its child."""
    return [[slot.process.pid, *descendants(slot.process.pid)] for slot in pool.slots]


def test_what_is_killed_from_outside_is_replaced_and_the_response_scored_again(pool):
    score(pool, ["give 0"] * 8)
    for place in range(max(map(len, started(pool)))):
        pids = [worker[place] for worker in started(pool) if place < len(worker)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert gone(pids)
        assert score(pool, ["give 1", "give 2", "give 3"]) == ([1.0, 2.0, 3.0], ["scored"] * 3)


class Running:
    """Says which process a response is in, whose text may run unless it is a number."""

    evaluates = True

    def inert(self, text, completion):
        return text.isdigit()

    def __call__(self, problem, text, completion):
        return float(os.getpid())


def test_text_that_may_run_has_a_process_that_no_other_response_has_been_in():
    pool = RewardPool(Running(), workers=1)
    pids, _ = score(pool, ["1", "run", "2", "run", "3"])
    pool.close()
    assert pids[0] == pids[2] == pids[4]
    assert len(set(pids)) == 3


class Noted:
    """Notes which process a response is in, and takes its time."""

    def __init__(self, file):
        self.file = file

    def __call__(self, problem, text, completion):
        with open(self.file, "a") as file:
            file.write(f"{os.getpid()} {os.getppid()}\n")
        time.sleep(float(text))
        return 1.0


@pytest.mark.parametrize("victim", [0, 1], ids=["child", "worker"])
def test_what_is_killed_again_and_again_ends_the_run_and_is_no_reward(victim, tmp_path):
    file = tmp_path / "noted"
    pool = RewardPool(Noted(str(file)), workers=1, timeout=60, level="limits")  # it writes a file

    def kill(times):
        for place in range(times):
            end, noted = time.monotonic() + 20, []
            while len(noted) <= place and time.monotonic() < end:
                time.sleep(0.02)
                noted = file.read_text().splitlines() if file.exists() else []
            os.kill(int(noted[place].split()[victim]), signal.SIGKILL)

    for times in (1, TRIES):
        file.unlink(missing_ok=True)
        thread = threading.Thread(target=kill, args=(times,))
        thread.start()
        if times < TRIES:
            assert score(pool, ["0.5"]) == ([1.0], ["scored"])
        else:
            with pytest.raises(RunError, match="killed from outside, 3 times with one response"):
                score(pool, ["60"])
        thread.join()
    pool.close()


def test_a_reward_of_parts_is_their_sum_and_keeps_them(pool):
    verdicts = pool.score([Problem("p", "?", "!")] * 2, ["parts 1 -0.25", "give 1"], [ENDED] * 2)
    assert verdicts == [Verdict(0.75, "scored", {"part 0": 1.0, "part 1": -0.25}), Verdict(1.0, "scored", {})]
    assert score(pool, ["parts 1 nan", "parts inf -inf"]) == ([0.0, 0.0], ["error", "error"])


def test_a_response_is_seen_whole_however_long(pool):
    """What is cut might be in the middle of a number."""
    assert score(pool, ["length ".ljust(length) for length in (100_001, 10**7)])[0] == [100_001, 10**7]
    exact = RewardPool(ExactReward(AnswerFormat()), workers=1)
    answer = "1" * 200_000
    verdicts = exact.probe(
        [Problem("p", "?", answer[:-1])] * 2, [f"Answer: {answer}", f"Answer: {answer[1:]}"], [ENDED] * 2
    )
    exact.close()
    assert [verdict.reward for verdict in verdicts] == [0.0, 1.0]


def test_what_is_probed_is_not_counted(pool, caplog):
    before = pool.timeouts, pool.errors
    (verdict,) = pool.probe([Problem("p", "?", "!")], ["raise not"], [ENDED])
    assert (verdict.outcome, (pool.timeouts, pool.errors), caplog.records) == ("error", before, [])
    assert "ValueError('not')" in verdict.problem


def test_any_thread_may_ask(pool):
    found = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: score(pool, [f"give {n}"])})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: ([float(n)], ["scored"]) for n in range(4)}


def test_the_number_of_workers_changes_nothing(pool):
    alone = RewardPool(obedient, workers=1, timeout=60)
    texts = [f"give {i * 0.1}" for i in range(50)]
    assert score(alone, texts) == score(pool, texts)
    alone.close()


@pytest.mark.wide
def test_each_response_has_its_own_time():
    """The third is begun late; it has not taken too long when the first one has."""
    pool = RewardPool(obedient, workers=2, timeout=6.0)
    assert score(pool, ["hang", "doze 2.8", "doze 3.6"]) == ([0.0, 1.0, 1.0], ["timeout", "scored", "scored"])
    pool.close()


class OnceSlow(ExactReward):
    """Takes too long the first time that it is asked."""

    def __init__(self, file):
        super().__init__(AnswerFormat())
        self.file = file

    def correct(self, problem, answer):
        if not Path(self.file).exists():
            Path(self.file).touch()
            time.sleep(60)
        return super().correct(problem, answer)


def test_a_time_out_is_not_remembered(tmp_path):
    """The machine may have been busy."""
    pool = RewardPool(OnceSlow(str(tmp_path / "asked")), workers=1, timeout=4.0, level="limits")  # it writes a file
    verdicts = [pool.score([Problem("p", "?", "1")], ["Answer: 1"], [ENDED]) for _ in range(2)]
    pool.close()
    assert verdicts == [[Verdict(0.0, "timeout")], [Verdict(1.0, "scored")]]


class Counted(ExactReward):
    """Leaves a mark whenever it is asked."""

    def __init__(self, file):
        super().__init__(AnswerFormat())
        self.file = file

    def correct(self, problem, answer):
        with open(self.file, "a") as file:
            file.write("x")
        return super().correct(problem, answer)


def test_verdicts_are_remembered_by_problem_and_answer(tmp_path):
    pool = RewardPool(Counted(str(tmp_path / "asked")), workers=1, level="limits")
    problem, other, cut = Problem("p", "?", "1"), Problem("q", "?", "2"), Completion([1], [0.0], False)
    mended = Problem("p", "?", "2")

    def rewards():
        responses = [
            (problem, "so Answer: 1", ENDED),
            (problem, "thus Answer: 1", ENDED),
            (problem, "Answer: 2", ENDED),
            (other, "Answer: 2", ENDED),
            (mended, "Answer: 2", ENDED),
            (problem, "Answer: 1", cut),
        ]
        return [verdict.reward for verdict in pool.score(*zip(*responses, strict=True))]

    assert rewards() == rewards() == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert (tmp_path / "asked").read_text() == "xxxx"
    pool.close()


@pytest.mark.parametrize("level", [best(), *wide(*{"limits"} - {best()})])
def test_workers_end_with_the_run_however_it_ends(level):
    processes = 6 if level == "namespaces" else 4
    program = (
        "import os, signal, threading\n"
        "from test_pool import RewardPool, obedient, score, started\n"
        f"pool = RewardPool(obedient, workers=2, timeout=1000, level={level!r})\n"
        f"while len(sum(started(pool), [])) < {processes}:\n"
        "    score(pool, ['doze 0.7'] * 4)\n"
        "print(*sum(started(pool), []), flush=True)\n"
        "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
        "score(pool, ['hold', 'sleep'])\n"
    )
    path = os.pathsep.join([str(HERE), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )
    assert run.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in run.stdout.split()]
    assert len(pids) == processes
    assert gone(pids)


def gone(pids):
    """Whether they all end soon."""
    end = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward": lambda *_: 0.0}, "reward: the processes that score cannot load it"),
        ({"workers": 0}, r"rollout\.reward_pool\.workers: 0"),
        ({"timeout": 0}, r"rollout\.reward_pool\.timeout: 0"),
        ({"memory_gib": -1}, r"rollout\.reward_pool\.memory_gib: -1"),
    ],
)
def test_what_cannot_work(arguments, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        RewardPool(**{"reward": obedient, **arguments})


def test_a_reward_that_only_this_process_knows(monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("rewards")])
    pool = RewardPool(obedient, workers=1)
    with pytest.raises(SettingError, match=r"^reward: .*test_pool"):
        score(pool, ["give 0"])


@pytest.mark.parametrize("module", [MathReward.__module__, obedient.__module__])
def test_it_starts_without_the_libraries_of_the_run(module):
    program = f"import sys, {module}, oblr.rewards.workers; print(*sys.modules)"
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | path, stdout=subprocess.PIPE, text=True, check=True
    )
    assert not {"torch", "vllm", "transformers", "lightning"} & set(run.stdout.split())
