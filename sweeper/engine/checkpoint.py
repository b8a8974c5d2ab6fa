"""Batched trials on disk in the middle of their training: one safetensors file, a JSON header.

The file is whole or not there, and says whose it is. What cannot be used is not: its trials begin
anew, which costs time and changes no result. Sums of the header and of the tensors tell accidents;
who writes on purpose sums as well, and so what another user owns or may write is not used.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sweeper.engine.batched import PADDING, BatchedRun
from sweeper.files import (
    RECORD_ERRORS,
    digest_of,
    is_own,
    json_text,
    parse_record,
    private_folder,
    sync_folder,
)
from sweeper.trial import Trial, digest

SUFFIX = ".checkpoint"
TRUNK = ".trunk"
"""What a checkpoint ends in that other horizons start from, see `engine/branches.py`."""
FORMAT_VERSION = 3


@dataclass(kw_only=True)
class RunProgress:
    """What the host knows of a run: the part of a checkpoint that is on no device.

    `losses` [steps, trials] are NaN where nothing is known; `steps` counts those of each trial
    that are. `stopped` maps the index of a trial that trains no more to its status. `seconds` is
    the time that the run has taken, over all attempts.
    """

    losses: np.ndarray
    stopped: dict[int, str]
    steps: list[int]
    seconds: float = 0.0


def path_of(folder: Path, trials: Sequence[Trial]) -> Path:
    """Where a run of these trials is saved in `folder`; in another order it is another run."""
    return folder / f"{digest([trial.key for trial in trials])[:32]}{SUFFIX}"


def trunk_of(folder: Path, trials: Sequence[Trial], step: int) -> Path:
    """Where the run of these trials is saved at `step`, for the horizons that branch off there."""
    return path_of(folder, trials).with_suffix(f".{step}{TRUNK}")


def save(run: BatchedRun, progress: RunProgress, path: Path) -> None:
    """Write aside, sync, rename: a kill leaves the old file or the new; OSError where it cannot."""
    private_folder(path.parent)
    tensors = {name: value.contiguous() for name, value in run.tensors().items()}
    tensors["losses"] = torch.from_numpy(progress.losses[: run.step_index].copy())
    header = {
        "format": FORMAT_VERSION,
        "content": _sum(tensors),
        "keys": [trial.key for trial in run.batched.trials],
        "slots": run.slots,
        "step": run.step_index,
        "stopped": {str(index): status for index, status in progress.stopped.items()},
        "steps": progress.steps,
        "seconds": progress.seconds,
        "clipped": run.clipped.tolist(),
    }
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        # Its owner's alone from its first byte, in a folder that a group shares too.
        os.close(os.open(temporary, os.O_WRONLY | os.O_EXCL | os.O_CREAT, 0o600))
        save_file(tensors, temporary, metadata={"sweeper": json_text(header)})
        temporary.chmod(0o600)  # some versions of safetensors write aside, by the umask
        # In this order: a name that reached the disk before its contents would be an empty
        # checkpoint after a power cut. The folder last, as the new name is part of it.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def load(
    run: BatchedRun, progress: RunProgress, path: Path, trials: Sequence[Trial] | None = None
) -> None:
    """Bring a fresh `run` and its `progress` to where `path` was saved, if there is such a file.

    `trials` are those that it was saved of, None: the run's own. ValueError for a file that is
    damaged, or of other trials: then nothing has changed.
    """
    trials = run.batched.trials if trials is None else trials
    try:
        if not path.exists():
            return
        with _opened(path) as (file, header):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # All is read and checked before anything changes: an invalid file leaves a fresh run.
        if header["format"] != FORMAT_VERSION:
            raise ValueError(f"its format is {header['format']!r}")
        if header["keys"] != [trial.key for trial in trials]:
            raise ValueError("it is of other trials")
        if header["content"] != _sum(tensors):
            raise ValueError("it was changed since it was written")
        for name, value in run.tensors().items():
            # Of as many slices as were left when it was saved.
            if tensors[name].shape != (len(header["slots"]), *value.shape[1:]):
                raise ValueError(f"{name} has the shape {list(tensors[name].shape)}")
        if tensors["losses"].shape != (header["step"], len(trials)):
            raise ValueError("its losses are not those of its steps")
        stopped = {int(index): str(status) for index, status in header["stopped"].items()}
        steps, seconds = list(map(int, header["steps"])), float(header["seconds"])
        clipped = torch.tensor(header["clipped"], dtype=torch.long)
        if clipped.shape != run.clipped.shape:
            raise ValueError("its clipped steps are not those of its trials")
        indices, slots = range(len(trials)), [slot for slot in header["slots"] if slot != PADDING]
        if len({*slots}) < len(slots) or not {*slots} | {*stopped} <= {*indices}:
            raise ValueError("it is of trials that there are not")
        if len(steps) != len(indices) or len(tensors["losses"]) > len(progress.losses):
            raise ValueError("its steps are not those of its trials")
    except (SafetensorError, OSError, *RECORD_ERRORS) as error:
        raise ValueError(f"the checkpoint {path} cannot be used: {error}") from error
    losses = tensors.pop("losses").numpy()
    run.load(tensors, header["slots"], header["step"])
    run.clipped.copy_(clipped)
    progress.losses[: len(losses)] = losses
    progress.stopped, progress.steps, progress.seconds = stopped, steps, seconds


def _sum(tensors: Mapping[str, torch.Tensor]) -> str:
    content = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().reshape(-1)
        content.update(f"{name} {value.dtype} {len(value)} ".encode())
        content.update(value.view(torch.uint8).numpy().data)
    return digest_of(content)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A checkpoint and its header; ValueError for one that is not this user's alone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not is_own(descriptor):
            raise ValueError("it is not yours alone")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        # What was looked at is what is read, whatever has that name by now.
        with safe_open(f"/dev/fd/{descriptor}", framework="pt", device="cpu") as file:
            yield file, parse_record(file.metadata()["sweeper"].encode())
    finally:
        os.close(descriptor)


def saved_keys(path: Path) -> list[str]:
    """Keys of the trials of the checkpoint at `path`; ValueError when it is damaged."""
    try:
        with _opened(path) as (_, header):
            return [str(key) for key in header["keys"]]
    except (SafetensorError, OSError, *RECORD_ERRORS) as error:
        raise ValueError(f"the checkpoint {path} cannot be used: {error}") from error


def forget(folder: Path, trials: Sequence[Trial]) -> None:
    """Remove what was saved of these trials together, whose results are recorded."""
    path = path_of(folder, trials)
    for each in (path, *folder.glob(f"{path.stem}.*{TRUNK}")):
        with suppress(OSError):
            each.unlink()


def tidy(folder: Path, is_finished: Callable[[str], bool], *, idle: bool) -> None:
    """Remove checkpoints of trials that are all finished, by key, and those that none can read.

    Where `idle`, nobody is writing: what was written half-way goes too.
    """
    for path in (*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{TRUNK}")):
        keys = list[str]()  # of a damaged file none is left unfinished
        with suppress(ValueError):
            keys = saved_keys(path)
        if all(is_finished(key) for key in keys):
            with suppress(OSError):
                path.unlink()
    # Any hidden file: safetensors, too, writes aside, under names that it chooses.
    for path in folder.glob(".*") if idle else ():
        with suppress(OSError):
            path.unlink()


def saved_batches(folder: Path, trials: Sequence[Trial]) -> list[tuple[Trial, ...]]:
    """Batches of `trials` that have a checkpoint in `folder`; a trial is in one of them at most."""
    by_key = {trial.key: trial for trial in trials}
    batches = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with suppress(ValueError):
            keys = saved_keys(path)
            if all(key in by_key for key in keys):
                # Popped: of two checkpoints with a trial in common only the first is gone on with.
                batches.append(tuple(by_key.pop(key) for key in keys))
    return batches
