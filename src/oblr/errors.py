"""Exceptions that scripts print as a single line: what the user can fix, and what ends a run from outside."""

import errno

#: What helps where the system refuses a file; other errors of the system are the program's own.
REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EROFS: "make it writable",
    errno.EACCES: "change its permissions",
    errno.EPERM: "change its permissions",
    errno.EIO: "look after the disk",
}


class SettingError(ValueError):
    """A setting that cannot work.

    Args:
        setting: name of the setting as typed on the command line, e.g. ``rollout.group_size``.
        problem: what is wrong with it.
        fix: what to change, as an imperative.
    """

    def __init__(self, setting: str, problem: str, fix: str) -> None:
        super().__init__(f"{setting}: {problem} ({fix})".replace("\n", " "))
        self.setting, self.problem, self.fix = setting, problem, fix

    def below(self, section: str, place: str) -> "SettingError":
        """The same of a section of the configuration that stands in another place."""
        setting = place + self.setting.removeprefix(section) if self.setting.startswith(f"{section}.") else self.setting
        return SettingError(setting, self.problem, self.fix)


class RunError(RuntimeError):
    """Ends a run; one line says why."""


class StaleEngineError(RunError):
    """The rollout engine does not sample from the policy that is being trained."""


class RefusedError(RunError):
    """One step after the other had no finite gradient."""


class EngineDiedError(RunError):
    """The rollout engine is gone, does not answer, or lost its weights; it can be restarted."""


class SyncTimeoutError(RunError):
    """The rollout engine did not get the policy's weights in time."""


class CheckpointError(RunError):
    """A checkpoint could not be written."""


class ExportError(RunError):
    """The trained policy could not be written."""


class RankError(RunError):
    """Another process of the run has failed."""
