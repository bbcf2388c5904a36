"""Where the classes are that configurations of earlier releases name by another path."""

#: These go on working until release 0.3.
MOVED = {
    "oblr.policy.PolicyModule": "oblr.policy.step.PolicyModule",
    "oblr.pretraining.": "oblr.policy.pretraining.",
    "oblr.prompts.": "oblr.data.prompts.",
    "oblr.strategies.": "oblr.run.strategies.",
}


def renewed(path: str) -> str:
    """The path of a class today."""
    old = next((old for old in MOVED if path.startswith(old)), "")
    return MOVED[old] + path.removeprefix(old) if old else path
