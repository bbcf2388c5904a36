"""Answers of a rollout engine, kept exactly, so that a run that goes on, or a replay of one, need not ask again.

A step asks its engine questions: prompts, how to sample, and a seed for each. An answer that is kept stands for the
question that it was given to, and for no other. Rewards score it anew.
"""

import gzip
import json
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from oblr.batch.types import Sampling
from oblr.errors import RunError, SettingError
from oblr.kinds import Text, checked
from oblr.problem import Completion
from oblr.rollout.ahead import Groups
from oblr.rollout.drawing import Drawn
from oblr.rollout.engine import Done
from oblr.rollout.replies import wrong
from oblr.run.disk import write_whole
from oblr.run.ranks import of_run

REPLAY = "rollout.recording.replay"
#: The folder of a run that has its answers.
FOLDER = "answers"


class Question(NamedTuple):
    """A request to an engine: ``sampling.n`` responses to each prompt, of which the j-th has its prompt's seed + j."""

    prompts: Sequence[Sequence[int]]
    sampling: Sampling
    seeds: Sequence[int]

    def row(self) -> dict[str, Any]:
        """The question in the lists and mappings that JSON has, by field."""
        lists = [list(prompt) for prompt in self.prompts], asdict(self.sampling), list(self.seeds)
        return dict(zip(self._fields, json.loads(json.dumps(lists)), strict=True))


@dataclass(frozen=True)
class Answer:
    """Completions that a question has been answered with.

    Attributes:
        version: of the weights that it was asked of.
    """

    version: int
    groups: Groups

    @property
    def completions(self) -> list[Completion]:
        return [one for group in self.groups for one in group]

    @property
    def newest(self) -> int:
        """Version of the newest weights that any of its tokens is of."""
        return max([self.version, *(of for one in self.completions for of, _ in one.versions)])

    def told(self, done: Done) -> Groups:
        """The completions, in groups by prompt; ``done`` hears of each first, as from an engine."""
        for query, group in enumerate(self.groups):
            for j, one in enumerate(group):
                done(query, j, one)
        return self.groups


@checked("rollout.recording")
class Recording:
    """Keeps answers to the questions of training steps, and has those that were kept.

    A run that goes on from a checkpoint asks again only for what had not been answered when it ended, or was answered
    by weights that the checkpoint does not know of. A replay has every batch as it came, of weights as old: a run that
    samples ahead is repeated in its order of arrival, also where ``rollout.in_flight`` is on, and needs no engine for
    its rollouts.

    Args:
        folder: of the answers, a file for each question.
        write: whether answers are kept; a thousand tokens with their log-probabilities take about 13 kB.
        replay: folder of a run whose answers this one has instead of asking.

    Attributes:
        run: what tells the run apart whose answers are written; checkpoints keep it. "" until it is known.

    Raises:
        SettingError: there is nothing to replay, or it is to be written over.
    """

    def __init__(self, folder: str, write: bool = False, replay: Text = None):
        self.folder, self.write, self.source = Path(folder), write, Path(folder)
        self.replay, self.begun, self.run = replay is not None, False, ""
        if replay is None:
            return
        self.source = Path(replay, FOLDER)
        if write:
            raise SettingError("rollout.recording.write", f"{REPLAY} has it all", "leave one of them out")
        if not any(self.source.glob("step-*.json.gz")):
            raise SettingError(
                REPLAY, f"there are no answers in {self.source}", "name a run that had rollout.recording.write=true"
            )

    def begin(self, step: int) -> None:
        """Forget what the engine of another run has answered, and what weights have that a run after ``step`` has not.

        Collective.
        """
        self.run = self.run or of_run().objects(secrets.token_hex(8))[0]
        if of_run().rank == 0 and not self.replay:
            for path in self.folder.glob("step-*.json.gz"):
                if step_of(path) >= step:
                    row, answer = read(path) or ({}, Answer(0, []))
                    if row.get("run") != self.run or answer.newest > step + 1:
                        path.unlink()
        of_run().objects(None)  # others wait for it

    def asks(
        self,
        drawn: Drawn,
        version: int,
        questions: Mapping[str, Question],
        ask: Callable[[Question, Done], Groups],
    ) -> tuple[int, dict[str, Callable[[Done], Groups]]]:
        """Functions that answer a step's questions, by use, and the version of the weights they answer by. Collective.

        Args:
            version: of the policy's weights.
            ask: asks the engine.

        Raises:
            RunError: an answer that is to be replayed is not there, or is to another question.
        """
        if not self.begun:
            self.begin(drawn.step)
            self.begun = True
        places = {use: self.source / f"step-{drawn.step:06d}-{use}-{drawn.first:06d}.json.gz" for use in questions}
        if answers := self.answers(drawn.step, version, questions, places):
            return next(iter(answers.values())).version, {use: answer.told for use, answer in answers.items()}
        if not self.write:
            return version, {use: partial(ask, question) for use, question in questions.items()}

        def asked(use: str, done: Done) -> Groups:
            groups = ask(questions[use], done)
            self.folder.mkdir(exist_ok=True)
            row = {"run": self.run} | questions[use].row() | asdict(Answer(version, groups))
            write_whole(places[use], gzip.compress(json.dumps(row).encode(), compresslevel=3, mtime=0))
            return groups

        return version, {use: partial(asked, use) for use in questions}

    def answers(
        self, step: int, version: int, questions: Mapping[str, Question], places: Mapping[str, Path]
    ) -> dict[str, Answer]:
        """The kept answers by use; none where this rank or another lacks one. Collective. Raises as `asks` does."""
        if not (self.write or self.replay):
            return {}
        known = {use: self.known(path, questions[use], version) for use, path in places.items()}
        missing = of_run().objects([why for why in known.values() if isinstance(why, str)])
        if not any(missing):
            return {use: answer for use, answer in known.items() if isinstance(answer, Answer)}
        if self.replay:
            first = next(whys[0] for whys in missing if whys)
            raise RunError(f"{REPLAY}: step {step + 1}: {first} (replay a run with the settings that it had)")
        return {}

    def known(self, path: Path, question: Question, version: int) -> Answer | str:
        """The answer to it, of weights up to ``version`` where it is not a replay; where there is none, why."""
        if (kept := read(path)) is None:
            return f"{path} is not there, or broken"
        asked, answer = kept
        others = [part for part, own in question.row().items() if own != asked.get(part)]
        if others:
            return f"{path} answers other {others[0]}"
        versions = [of for one in answer.completions for of, _ in one.versions]
        if min(versions, default=answer.version) < answer.version or (answer.newest > version and not self.replay):
            return f"{path} has tokens of weights that it cannot have"
        wrongs = (wrong(one, question.sampling, None) for one in answer.completions)
        return next((f"{path} has a response {fault}" for fault in wrongs if fault), answer)


def step_of(path: Path) -> int:
    """The step that a file is of, counted from 0."""
    return int(path.name.split("-")[1])


def read(path: Path) -> tuple[dict[str, Any], Answer] | None:
    """What was asked, and its answer; None where there is no such file, or none that is whole."""
    try:
        row = json.loads(gzip.decompress(path.read_bytes()))
        groups = [
            [Completion(**one | {"versions": tuple(map(tuple, one["versions"]))}) for one in group]
            for group in row.pop("groups")
        ]
        return row, Answer(row.pop("version"), groups)
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError):
        return None
