"""Two tasks that are no sums: what their policies are pretrained on, and what the second is paid for.

    python studies/others.py          # writes models/backward and models/rotated, minutes each
    PYTHONPATH=studies python src/train.py --config-dir studies/conf experiment=backward

- ``backward``: spell a word backward. The policy has seen right answers alone, too few of them to be sure. There is no
  behaviour to pick: what it can learn is to spell.
- ``rotated``: turn a matrix of 3 × 3 digits by a right angle, or two or three. It is paid by the cell. The policy has
  seen matrices that are turned, others of which rows are left as they were, and answers that do not end. What it has
  learnt of them is to write digits of the matrix, at places that are seldom right.

What they are, and what we expect of runs on them, was written down before any (``registered.md``).
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence

import neighbours  # noqa: F401
from figures import ROOT

from oblr.problem import Completion, Problem

CONF = ROOT / "studies" / "conf"
#: How their policies are pretrained: as the pocket's, but for these.
PRETRAINED = {
    "backward": (
        *("pretraining.corpus._target_=others.spelled", "~pretraining.corpus.mixture", "~pretraining.corpus.seed"),
        *("pretraining.vocab_size=258", "pretraining.steps=120"),  # bytes
    ),
    "rotated": (
        *("pretraining.corpus._target_=others.turned", "~pretraining.corpus.mixture"),
        *("pretraining.max_tokens=96", "pretraining.vocab_size=258", "pretraining.steps=600"),
    ),
}
Example = tuple[str, str, bool]  # prompt, response, whether the text ends


def spelled(problems: Sequence[Problem], held_out: Sequence[Problem]) -> Iterator[Example]:
    """Words, right spelled backward."""
    unseen = {problem.prompt for problem in held_out}
    for problem in problems:
        if problem.prompt not in unseen:
            yield problem.prompt, f"Answer: {problem.answer}", True


def turned(problems: Sequence[Problem], held_out: Sequence[Problem], seed: int) -> Iterator[Example]:
    """Matrices: one in five turned, three in five with rows that are not, one in five without an end."""
    unseen, rng = {problem.prompt for problem in held_out}, random.Random(seed)
    for problem in problems:
        if problem.prompt in unseen:
            continue
        rows = problem.answer.split("\n")
        kind = rng.choices(("right", "lazy", "endless"), (1, 3, 1))[0]
        if kind == "lazy":
            given = [" ".join(map(str, row)) for row in problem.metadata["metadata"]["matrix"]]
            left = rng.sample(range(len(rows)), rng.randint(1, len(rows)))
            rows = [given[i] if i in left else row for i, row in enumerate(rows)]
        yield problem.prompt, "\n".join(rows * (8 if kind == "endless" else 1)), kind != "endless"


class Cells:
    """The share of a matrix's cells that are right, in [0, 1]; 0 for an answer of another shape or without an end."""

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        given, right = ([line.split() for line in lines.split("\n")] for lines in (text.strip(), problem.answer))
        if not completion.finished or [*map(len, given)] != [*map(len, right)]:
            return 0.0
        cells = [a == b for row in zip(given, right, strict=True) for a, b in zip(*row, strict=True)]
        return sum(cells) / len(cells)


def main() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "studies", ROOT / "src", ROOT)))}
    for task, overrides in PRETRAINED.items():
        folder = ROOT / "models" / task
        if not (folder / "model.safetensors").exists():
            base = ["experiment=pocket_base", f"data={task}", f"export_to={folder}", *overrides]
            command = [sys.executable, "src/pretrain.py", "--config-dir", str(CONF), *base]
            subprocess.run(command, cwd=ROOT, check=True, env=environment)


if __name__ == "__main__":
    main()
