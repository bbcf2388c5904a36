"""An engine that samples nothing, but says of everything what it was asked for, when, and with which weights."""

import threading

from oblr.errors import StaleEngineError
from oblr.problem import Completion
from oblr.rollout.readback import whole


class Apart:
    """A response is a token of the seed, one of the weights' version, and the end.

    Where new weights have come into its midst, the first token is of those that it was asked of, the rest of the new.

    Attributes:
        calls: what it was told to do, and in which thread.
        failures: by the number of a call to generate, counted from 0: what it then raises.
        misses: by the version of new weights, likewise.
        gates: by that number, or by the kind of thread that calls: set when it may go on.
        asked: set with each call.
    """

    apart, in_flight, dtype = True, False, "float32"
    END = 0

    def __init__(self):
        self.weight_version = None
        self.calls, self.failures, self.misses, self.gates = [], {}, {}, {}
        self.generated, self.versions, self.closed = 0, [], False
        self.asked = threading.Condition()

    def note(self, what):
        with self.asked:
            self.calls.append((what, threading.current_thread() is threading.main_thread()))
            self.asked.notify_all()

    def start(self):
        self.note("start")
        self.weight_version = None

    def sync(self, weights, version):
        self.note(f"sync {version}")
        if (failure := self.misses.pop(version, None)) is not None:
            raise failure
        self.weights = {name: weight.clone() for name, weight in weights}
        self.weight_version = version

    def generate(self, prompts, sampling, seeds, done=None):
        with self.asked:  # several threads may ask
            begun, number = self.weight_version, self.generated
            self.generated += 1
        self.note(f"generate {sampling.n}")
        thread, _, _ = threading.current_thread().name.partition("_")
        if (gate := self.gates.get(number, self.gates.get(thread))) is not None:
            while not gate.wait(0.01):
                if self.closed:
                    raise StaleEngineError("closed")
        if (failure := self.failures.pop(number, None)) is not None:
            raise failure
        version = self.weight_version
        if version is None:
            raise StaleEngineError("no weights")
        groups = [[self.response(seed + j, begun, version) for j in range(sampling.n)] for seed in seeds]
        for query, group in enumerate(groups):
            for j, one in enumerate(group):
                if done is not None:
                    done(query, j, one)
        assert self.in_flight or begun == self.weight_version == version, "the weights changed while it sampled"
        return groups

    def response(self, seed, begun, version):
        spans = ((begun, 1), (version, 2)) if begun < version else ((version, 3),)
        versions = spans if self.in_flight else ()
        return Completion([1 + seed % 90, version, self.END], [-0.5] * 3, finished=True, versions=versions)

    def read(self, blocks):
        picked = [(block, self.weights[block.name][block.rows]) for block in blocks]
        return [[whole(block, rows[:, block.columns] if rows.dim() > 1 else rows) for block, rows in picked]]

    def sleep(self):
        self.note("sleep")

    def close(self):
        self.closed = True
