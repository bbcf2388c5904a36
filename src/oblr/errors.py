"""The one exception that means "the user can fix this": scripts print it as a single line and exit with status 2."""


class SettingError(ValueError):
    """A setting that cannot work.

    Args:
        setting: name of the setting as typed on the command line, e.g. ``rollout.group_size``.
        problem: what is wrong with it.
        fix: what to change, as an imperative.
    """

    def __init__(self, setting: str, problem: str, fix: str) -> None:
        super().__init__(f"{setting}: {problem} ({fix})".replace("\n", " "))


class EngineError(RuntimeError):
    """The rollout engine does not do its part, and the run cannot go on: scripts print it as a single line, too."""


class StaleEngineError(EngineError):
    """The rollout engine does not sample from the policy that is being trained."""


class EngineDiedError(EngineError):
    """The rollout engine is gone, does not answer, or lost its weights; it can be restarted."""


class SyncTimeoutError(EngineError):
    """The rollout engine did not get the policy's weights in time."""
