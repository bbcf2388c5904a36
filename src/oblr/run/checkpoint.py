"""Checkpoints: folders that are whole or absent, written by all ranks and read by any number of them.

A folder holds the tensors in the format of :mod:`torch.distributed.checkpoint`, ``meta.pt`` with everything else and
``manifest.json`` with the digest of every file. It gets its name when all of that is on the disk, and has been read
from there. Whoever may write a checkpoint brings numbers and settings: reading one runs nothing that it names.
"""

import errno
import io
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from oblr.errors import REMEDIES, CheckpointError, SettingError, why
from oblr.run.described import described
from oblr.run.disk import put, write_private
from oblr.run.manifest import MANIFEST, Manifest, Order, digest, following, read_manifest
from oblr.run.ranks import of_run, on_every_rank, on_first_rank

META, DESCRIPTION = "meta.pt", ".metadata"


def save(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    meta: dict[str, Any],
    order: Order | None = None,
) -> None:
    """Write trained parameters, optimizer state and ``meta`` of rank 0. Collective; all ranks see the same file system.

    Args:
        order: the checkpoint's place; None: after all others in its folder.

    Raises:
        CheckpointError: on every rank, where one of them could not write; what was written is gone, and earlier
            checkpoints are as they were.
    """
    part = folder.with_name(f"{folder.name}.part")
    try:
        on_first_rank(lambda: shutil.rmtree(part, ignore_errors=True))
        tensors = _flat(module, _states(module, optimizer))
        group = of_run().group
        dcp.save(tensors, storage_writer=_Writer(part), process_group=group, no_dist=group is None)
        digests = on_every_rank(lambda: {file.name: _proven(file) for file in part.glob(f"__{of_run().rank}_*")})
        on_first_rank(lambda: _finish(part, folder, digests, meta, order or following(folder.parent)))
    except (OSError, CheckpointException) as error:
        if of_run().rank == 0:
            shutil.rmtree(part, ignore_errors=True)
        cause = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        remedy = REMEDIES.get(getattr(cause, "errno", None) or 0, "mend that")
        raise CheckpointError(
            f"checkpoint {folder} could not be written: {getattr(cause, 'strerror', None) or cause}; "
            f"earlier ones are whole ({remedy}, then go on with ckpt_path=last)"
        ) from error


def load(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Put back what :func:`save` wrote, in place, and return its ``meta``. Collective.

    Raises:
        SettingError: on every rank, where a file is not what was written.
    """
    manifest, ranks = _manifest(folder), of_run()
    mine = sorted(manifest.files)[ranks.rank :: ranks.count]
    damaged = on_every_rank(lambda: [name for name in mine if digest(folder / name) != manifest.files[name]])
    if names := ", ".join(name for names in damaged for name in names):
        raise SettingError("ckpt_path", f"{folder} is damaged: {names}", "resume another one")
    states, reader = {} if optimizer is None else _empty_states(folder, module), _Reader(folder)
    try:
        dcp.load(_flat(module, states), storage_reader=reader, process_group=ranks.group, no_dist=ranks.group is None)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise SettingError("ckpt_path", f"{folder} cannot be read: {why(cause)}", "resume another one") from error
    if optimizer is not None:
        name_of = {p: name for name, p in module.named_parameters()}
        owners = [name_of[p] for group in optimizer.param_groups for p in group["params"]]
        kept = {i: states[name] for i, name in enumerate(owners) if name in states}
        # the settings of the groups are the configuration's
        optimizer.load_state_dict({"state": kept, "param_groups": optimizer.state_dict()["param_groups"]})
    return meta(folder)


def meta(folder: Path) -> dict[str, Any]:
    """What a checkpoint has besides tensors.

    Raises:
        SettingError: it is not what was written.
    """
    if digest(folder / META) != _manifest(folder).files.get(META):
        raise SettingError("ckpt_path", f"{folder} is damaged: {META}", "resume another one")
    try:
        kept = torch.load(folder / META, map_location="cpu", weights_only=True)
    except Exception as error:  # of a pickle that wants more than plain values, or is none
        raise _foreign(folder, META, error) from error
    if not isinstance(kept, dict) or not all(isinstance(name, str) for name in kept):
        raise _foreign(folder, META, TypeError("it holds no values by name"))
    return kept


def _manifest(folder: Path) -> Manifest:
    try:
        return read_manifest(folder)
    except (OSError, ValueError, RecursionError) as error:
        raise _foreign(folder, MANIFEST, error) from error


def _foreign(folder: Path, name: str, error: Exception) -> SettingError:
    return SettingError("ckpt_path", f"{folder} has a {name} that no run writes: {why(error)}", "resume another one")


def shapes(folder: Path) -> dict[str, torch.Size]:
    """Of the parameters in a checkpoint."""
    stored = _stored(folder)
    return {name.removeprefix("model."): size for name, size in stored.items() if name.startswith("model.")}


class _Reader(dcp.FileSystemReader):
    """Reads the description of the tensors, which is a pickle, as plain values, and nothing before its digest."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        folder = Path(self.path)
        files = _manifest(folder).files
        if digest(folder / DESCRIPTION) != files.get(DESCRIPTION):
            raise SettingError("ckpt_path", f"{folder} is damaged: {DESCRIPTION}", "resume another one")
        try:
            found = described((folder / DESCRIPTION).read_bytes(), files)
        except Exception as error:  # whatever a pickle that nobody of ours has written makes a reader raise
            raise _foreign(folder, DESCRIPTION, error) from error
        self.load_id = found.storage_meta.load_id = ""  # type: ignore[union-attr, assignment]
        return found


class _Writer(dcp.FileSystemWriter):
    """Where the system refuses a file, torch raises an error of its own in place of the system's."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise


def _states(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """What the optimizer remembers, by parameter and kind."""
    known = {name: optimizer.state[p] for name, p in module.named_parameters() if p in optimizer.state}
    return {name: {kind: torch.as_tensor(value) for kind, value in state.items()} for name, state in known.items()}


def _empty_states(folder: Path, module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Room for the states in a checkpoint; those of a parameter's shape are sharded as it is."""
    states: dict[str, dict[str, Tensor]] = {name: {} for name, _ in module.named_parameters()}
    for full, size in _stored(folder).items():
        if full.startswith("optimizer."):
            _, kind, name = full.split(".", 2)
            p = module.get_parameter(name)
            states[name][kind] = torch.zeros_like(p.detach()) if p.shape == size else torch.zeros(size)
    return {name: state for name, state in states.items() if state}


def _flat(module: nn.Module, states: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Parameters and states by their names in a checkpoint."""
    parameters = {f"model.{name}": p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return parameters | {
        f"optimizer.{kind}.{name}": value for name, state in states.items() for kind, value in state.items()
    }


def _stored(folder: Path) -> dict[str, torch.Size]:
    return {name: entry.size for name, entry in _Reader(folder).read_metadata().state_dict_metadata.items()}  # type: ignore[union-attr]


def _finish(part: Path, folder: Path, digests: list[dict[str, Any]], meta: dict[str, Any], order: Order) -> None:
    """Add what describes the tensors, make sure that all is on the disk, and give the folder its name."""
    buffer = io.BytesIO()
    torch.save(meta, buffer)  # to a file, it would hide the system's error behind one of its own
    write_private(part / META, buffer.getvalue())  # it has the run's configuration
    others = {name: _proven(part / name) for name in (META, DESCRIPTION)}
    manifest = Manifest({name: own for files in [*digests, others] for name, own in files.items()}, order)
    (part / MANIFEST).write_text(manifest.written())
    _proven(part / MANIFEST)
    put(part, folder)


def _proven(path: Path) -> dict[str, Any]:
    """The digest of a file that the disk gives back as it was written."""
    written = digest(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # what is read now comes from the disk
    finally:
        os.close(descriptor)
    if digest(path) != written:
        raise OSError(errno.EIO, "it is read as something else than was written", str(path))
    return written
