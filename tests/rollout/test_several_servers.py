"""Several servers as one engine: who samples what, and what happens when some of them fail."""

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from apart import Apart
from conftest import POCKET
from lending import lent

from oblr.batch.types import Sampling
from oblr.errors import EngineDiedError, SettingError, StaleEngineError
from oblr.policy.loading import load_model
from oblr.rollout.server import ServerEngine
from oblr.rollout.servers import ServersEngine

SAMPLING = Sampling(2, 1.0, 8, (Apart.END,))
PROMPTS = [[1, 2, 3]] * 40
SEEDS = [100 * q for q in range(40)]


class Member(Apart):
    """Takes ``delay`` seconds for a prompt; ``well`` says whether it answers, ``takes`` how many weights it bears."""

    def __init__(self, url):
        super().__init__()
        self.given_up = threading.Event()
        self.server = SimpleNamespace(url=url, give_up=lambda why: self.given_up.set())
        self.delay, self.well, self.hangs, self.takes, self.asked_for = 0.0, True, False, None, 0
        self.among = None

    def answers(self):
        return self.well

    def start(self):
        if not self.well:
            raise EngineDiedError(f"{self.server.url} does not answer")
        super().start()

    def sync(self, weights, version):
        self.weight_version, taken = self.weight_version if self.in_flight else None, []
        for item in weights:
            if self.takes == len(taken):
                raise EngineDiedError(f"{self.server.url} is full")
            taken.append(item)
        super().sync(taken, version)

    def generate(self, prompts, sampling, seeds, done=None):
        self.asked_for += len(prompts)
        while self.among and not all(one.asked_for for one in self.among.living):
            time.sleep(0.01)
        time.sleep(self.delay * len(prompts))
        if self.hangs:
            assert self.given_up.wait(60)
            raise EngineDiedError(f"{self.server.url} was given up")
        if not self.well:
            raise EngineDiedError(f"{self.server.url} has gone")
        return super().generate(prompts, sampling, seeds, done)


def weights():
    return ((f"w{k}", torch.full((2, 3), float(k))) for k in range(5))


@pytest.fixture
def engine():
    engine = ServersEngine([f"http://host:{port}" for port in (1, 2, 3)], Member)
    engine.start()
    engine.sync(weights(), 1)
    return engine


def alone():
    engine = Member("http://host:1")
    engine.start()
    engine.sync(weights(), 1)
    return engine.generate(PROMPTS, SAMPLING, SEEDS)


def ports(engine):
    return [int(one.server.url[-1]) for one in engine.living]


def busy(engine):
    """None answers before all that live have been asked."""
    for one in engine.servers:
        one.delay, one.among = 0.01, engine


def test_every_prompt_is_answered_once_as_by_one_server(engine):
    told, lock = [], threading.Lock()

    def done(query, j, completion):
        with lock:
            told.append((query, j, completion))

    busy(engine)
    groups = engine.generate(PROMPTS, SAMPLING, SEEDS, done)
    assert groups == alone()
    assert sorted(told, key=lambda one: one[:2]) == [(q, j, groups[q][j]) for q in range(40) for j in range(2)]
    assert sum(one.asked_for for one in engine.servers) == 40
    assert min(one.asked_for for one in engine.servers) > 0


def test_who_is_slow_is_asked_for_less(engine):
    engine.servers[0].delay, engine.servers[1].delay, engine.servers[2].delay = 0.05, 0.005, 0.005
    engine.generate(PROMPTS, SAMPLING, SEEDS)
    slow, *quick = [one.asked_for for one in engine.servers]
    assert slow < min(quick) / 2


def test_what_a_server_does_not_live_to_answer_others_do(engine, caplog):
    busy(engine)
    engine.servers[1].well = False
    with caplog.at_level(logging.WARNING):
        assert engine.generate(PROMPTS, SAMPLING, SEEDS) == alone()
    assert ports(engine) == [1, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "a rollout server is left out: http://host:2 has gone"
    ]


def test_one_that_dies_last_leaves_its_part_to_others(engine):
    """When these have nothing to do any more."""
    busy(engine)
    dying = engine.servers[2]
    dying.delay = 0.2
    threading.Timer(0.3, lambda: setattr(dying, "well", False)).start()
    assert engine.generate(PROMPTS, SAMPLING, SEEDS) == alone()
    assert ports(engine) == [1, 2]


def test_it_is_taken_back_with_new_weights(engine, caplog):
    busy(engine)
    lost = engine.servers[1]
    lost.well = False
    engine.generate(PROMPTS, SAMPLING, SEEDS)
    engine.sync(weights(), 2)
    assert (ports(engine), lost.weight_version) == ([1, 3], 1)
    lost.well = True
    with caplog.at_level(logging.WARNING):
        engine.sync(weights(), 3)
    assert (sorted(ports(engine)), lost.weight_version) == ([1, 2, 3], 3)
    assert "http://host:2 is back" in caplog.text
    assert {one.weight_version for one in engine.servers} == {engine.weight_version} == {3}


def test_ranks_go_by_the_deaths_that_the_first_has_met(engine, monkeypatch):
    """This one has lost another server than that one, which has found none back."""
    engine.living = [engine.servers[0], engine.servers[1]]
    said = iter([([0], []), {}])  # which are lost and back, and which have failed in the sync
    monkeypatch.setattr("oblr.rollout.servers.of_run", lambda: SimpleNamespace(objects=lambda own: [next(said), own]))
    engine.sync(weights(), 2)
    assert ports(engine) == [2, 3]
    assert [one.weight_version for one in engine.servers] == [1, 2, 2]


def test_the_engine_dies_with_the_last(engine):
    for one in engine.servers:
        one.well = False
    with pytest.raises(EngineDiedError, match="has gone"):
        engine.generate(PROMPTS, SAMPLING, SEEDS)
    with pytest.raises(EngineDiedError, match="does not answer"):
        engine.start()
    engine.servers[0].well = True
    engine.start()
    assert ports(engine) == [1]
    with pytest.raises(StaleEngineError):
        engine.generate(PROMPTS, SAMPLING, SEEDS)


def test_a_server_with_old_weights_ends_the_run_at_once(engine):
    busy(engine)
    engine.servers[1].weight_version = None
    with pytest.raises(StaleEngineError):
        engine.generate(PROMPTS, SAMPLING, SEEDS)


def test_weights_are_gone_through_once_and_reach_all_that_live(engine):
    engine.servers[0].takes = 2
    gone_through = []
    engine.sync(((name, gone_through.append(name) or weight) for name, weight in weights()), 2)
    assert gone_through == [f"w{k}" for k in range(5)]
    assert ports(engine) == [2, 3]
    for one in engine.living:
        assert list(one.weights) == gone_through
        assert all((weight == k).all() for k, weight in enumerate(one.weights.values()))
    assert engine.servers[0].weight_version is None


def test_weights_that_do_not_come_to_their_end_are_nobodys(engine):
    def broken():
        yield next(weights())
        raise ValueError("gathering failed")

    with pytest.raises(ValueError, match="gathering failed"):
        engine.sync(broken(), 2)
    assert [one.weight_version for one in engine.servers] == [None] * 3
    assert engine.weight_version is None


@pytest.fixture
def in_flight(engine):
    """One whose weights are replaced while it samples."""
    engine.in_flight = True
    engine.start()
    engine.sync(weights(), 1)
    return engine


def test_what_a_server_that_new_weights_do_not_reach_was_asked_others_sample(in_flight, caplog):
    """It may be paused, and would never answer."""
    lost = in_flight.servers[1]
    lost.hangs, lost.takes = True, 2
    busy(in_flight)
    with ThreadPoolExecutor() as pool:
        whole = pool.submit(in_flight.generate, PROMPTS, SAMPLING, SEEDS)
        while not lost.asked_for:
            time.sleep(0.01)
        in_flight.sync(weights(), 2)
        groups = whole.result()
    assert [[one.token_ids[0] for one in group] for group in groups] == [
        [one.token_ids[0] for one in group] for group in alone()
    ]
    assert ports(in_flight) == [1, 3]
    assert [record.getMessage() for record in caplog.records] == ["a rollout server is left out: http://host:2 is full"]


def test_one_that_is_back_is_asked_for_nothing_before_it_has_weights(in_flight):
    """While the weights travel, others sample."""
    lost = in_flight.servers[2]
    lost.well = False
    busy(in_flight)
    in_flight.generate(PROMPTS, SAMPLING, SEEDS)
    assert ports(in_flight) == [1, 2]
    lost.well, lost.asked_for = True, 0

    def watched():
        yield from weights()
        assert lost.weight_version is None
        in_flight.generate(PROMPTS, SAMPLING, SEEDS)
        assert not lost.asked_for

    in_flight.sync(watched(), 2)
    in_flight.generate(PROMPTS, SAMPLING, SEEDS)
    assert lost.asked_for


def test_in_flight_too_the_engine_dies_with_the_last(in_flight):
    """However many ask."""
    for one in in_flight.servers:
        one.well = False
    for _ in range(2):
        with pytest.raises(EngineDiedError, match=r"has gone|no rollout server is left"):
            in_flight.generate(PROMPTS, SAMPLING, SEEDS)


@pytest.mark.parametrize("urls", [[], ["http://a:1"], ["http://a:1", "http://a:1"]])
def test_what_are_not_several(urls):
    with pytest.raises(SettingError, match=r"rollout\.engines\.servers\.urls: .*rollout\.engine=server"):
        ServersEngine(urls, Member)


@pytest.mark.servers
def test_two_real_ones_of_which_one_is_killed(pocket_server, tmp_path):
    """In the midst of a batch; what comes out is what one server gives."""
    model = load_model(str(POCKET), "float32")
    named = {name: p.detach() for name, p in model.named_parameters()}
    settings = {"model": str(POCKET), "dtype": "float32", "max_model_len": 128, "log": str(tmp_path / "log")}
    second = ServerEngine(**settings)
    second.start()
    prompts, seeds = [[5 + q % 7, 6, 7] for q in range(60)], [1000 * q for q in range(60)]
    sampling = Sampling(4, 1.0, 48, (0,))
    with ExitStack() as stack:
        tokens = {}
        for one in (pocket_server, second):
            stack.enter_context(lent(one))
            tokens[one.server.url] = str(one.process.token)
        engine = ServersEngine([*tokens], lambda url: ServerEngine(**settings, url=url, token_file=tokens[url]))
        engine.start()
        engine.sync(iter(named.items()), 1)
        whole = engine.generate(prompts, sampling, seeds)
        group = os.getpgid(second.process.process.pid)
        threading.Timer(0.3, lambda: os.killpg(group, signal.SIGKILL)).start()
        again = engine.generate(prompts * 4, sampling, seeds * 4)
        assert [one.server.url for one in engine.living] == [pocket_server.server.url]
        same = [
            [one.token_ids for one in group] == [one.token_ids for one in whole[q % 60]]
            for q, group in enumerate(again)
        ]
        assert sum(same) > 0.95 * len(same)  # who shares a batch rounds otherwise
        engine.close()
        stack.pop_all()  # of the second there is nothing left to be claimed
    pocket_server.server.claim("again")
