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

#: The page of ``docs/`` that says more of a setting, by how its name begins.
PAGES = {
    **dict.fromkeys(("architecture", "policy.path", "policy.attention", "policy.lora"), "models.md"),
    "baseline": "baselines.md",
    **dict.fromkeys(
        ("benchmarks", "benchmarks_dir", "by", "compare", "k", "model", "rescore", "samples", "stop"), "evaluation.md"
    ),
    **dict.fromkeys(("callbacks", "logger", "runs"), "watching.md"),
    "callbacks.benchmarks": "evaluation.md",
    **dict.fromkeys(("callbacks.checkpoints", "ckpt_path", "rollout.restarts"), "testing.md"),
    **dict.fromkeys(("data", "prompt"), "data.md"),
    **dict.fromkeys(("eta0", "schedule"), "schedules.md"),
    **dict.fromkeys(("experiment", "optimizer"), "change.md"),
    "gradnorm": "cost.md",
    "kl": "kl.md",
    "loss": "losses.md",
    **dict.fromkeys(
        ("planned", "requires", "rollout.engine", "rollout.engines", "rollout.max_model_len", "trainer"), "machines.md"
    ),
    "reward": "rewards.md",
}
#: What has every setting, with what it may be.
REFERENCE = "settings.md"
#: What says how runs meet faults, of disks and of processes.
FAULTS = "testing.md"


def page(setting: str) -> str:
    """The page that says more of the setting ``a.b.c``: its own, that of ``a.b`` or ``a``, or the reference."""
    parts = setting.split(".")
    beginnings = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((PAGES[beginning] for beginning in beginnings if beginning in PAGES), REFERENCE)


def why(error: BaseException) -> str:
    """An error of a library in a few words of one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:160]}{'…' * (len(said) > 160)}"


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


class UnmeasuredError(ValueError):
    """What a gradient is made of cannot be said for certain.

    Args:
        problem: why.
        fix: what to change, as an imperative.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)  # so that one rank can tell the others

    def __str__(self) -> str:
        return "{} ({})".format(*self.args)


class RunError(RuntimeError):
    """Ends a run; one line says why, and names the ``page`` that says more."""

    page = FAULTS


class HostError(RunError):
    """What is installed does not fit the machine that it runs on."""

    page = "machines.md"


class StaleEngineError(RunError):
    """The rollout engine does not sample from the policy that is being trained."""

    page = "machines.md"


class RefusedError(RunError):
    """One step after the other had no finite gradient."""


class EngineDiedError(RunError):
    """The rollout engine is gone, does not answer, or lost its weights; it can be restarted."""

    page = "machines.md"


class GarbledError(EngineDiedError):
    """The rollout engine's answer is none to what it was asked."""


class SyncTimeoutError(RunError):
    """The rollout engine did not get the policy's weights in time."""

    page = "machines.md"


class CheckpointError(RunError):
    """A checkpoint could not be written."""


class ExportError(RunError):
    """The trained policy could not be written."""


class RankError(RunError):
    """Another process of the run has failed."""
