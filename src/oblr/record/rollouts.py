"""The files of responses that a run has kept."""

from pathlib import Path

from oblr.batch.types import COLUMNS, Column

#: Numbers of a row that follow from those of the step's statistics, by their names there.
DERIVED = {
    one.key: one
    for one in (
        Column(
            "length of the response's part in the step's gradient over the sum of the lengths of all parts: shares sum "
            "to 1 over the step",
            *("share", "share of the update"),
        ),
        Column("what is taken from the reward", "baseline", "baseline"),
        Column("probability under the policy over that under the engine", "ratio", "importance ratio"),
        Column("logarithm of its probability under the engine, nats", "logprob"),
        Column("place, from 0, of the token whose own logit has the largest slope in its loss", "peak"),
        Column("share of that token in the sum of these slopes' squares", "peak_share"),
    )
}


def columns() -> list[Column]:
    """The numbers of a row, in the order in which a table shows them."""
    first, *others = (one for one in COLUMNS.values() if one.key)
    return [first, *DERIVED.values(), *others]


def table() -> str:
    """The table of a row's numbers in Markdown, for docs/tags.md."""
    rows = [f"| `{one.key}` | {one.meaning[0].upper()}{one.meaning[1:]}. |" for one in columns()]
    return "\n".join(["| of a response | what it is |", "|---|---|", *rows])


def step_of(path: Path) -> int:
    """The step whose responses a file has."""
    return int(path.name.split("-")[1])


def files_of_steps(folder: Path) -> dict[int, list[Path]]:
    """The steps whose responses were kept, in their order, from 1, with a file of each rank."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("step-*.jsonl.gz")):
        found.setdefault(step_of(path), []).append(path)
    return {step + 1: files for step, files in found.items()} if 0 in found else found  # of an earlier version
