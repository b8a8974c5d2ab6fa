"""Logs of finished trials beside the study's own record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from sweeper.files import append, private_folder, read_json
from sweeper.records import to_json
from sweeper.study.folder import TargetFolder
from sweeper.trial import Result, digest


class Ledger:
    """A file of lines that only grows, each of them in it once: what a log has taken.

    A line cut short by a kill is taken off it. OSError when it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes() if path.exists() else b""
        complete = data[: data.rfind(b"\n") + 1]
        if complete != data:
            os.truncate(path, len(complete))
        # Hashes save memory: a line of `trials.jsonl` has a trial's whole curve.
        self._lines = {hash(line) for line in complete.splitlines()}

    def __contains__(self, line: str) -> bool:
        return hash(line.encode()) in self._lines

    def add(self, line: str) -> None:
        """Write a line that is not there yet; when this returns, it is on the disk."""
        if line not in self:
            append(self.path, line.encode() + b"\n")
            self._lines.add(hash(line.encode()))


@dataclass(frozen=True, kw_only=True)
class Ledgers:
    """The ledgers that a logger has read, by their path: each is read once."""

    read: dict[Path, Ledger] = field(default_factory=dict)

    def at(self, path: Path) -> Ledger:
        """The ledger in the file at `path`."""
        if path not in self.read:
            self.read[path] = Ledger(path)
        return self.read[path]


def result_line(result: Result) -> str:
    """A ledger's line for a result: another outcome of the same trial is another line."""
    return f"{result.key} {result.status} {result.steps} {result.finished_at!r}"


def loss_curve(result: Result) -> list[tuple[int, float]]:
    """The curve as (steps done, mean training loss in nats over the stretch that ends there)."""
    count = len(result.curve)
    if not count:
        return []
    # The stretches are as equal as whole steps allow, and the first ones are the longer.
    # As `trial.curve` cut them, by numpy's array_split.
    short, longer = divmod(max(result.steps, count), count)
    ends = accumulate(short + (index < longer) for index in range(count))
    return list(zip(ends, result.curve, strict=True))


def axis_verdicts(target: Path) -> dict[str, str]:
    """The verdict of every axis that was validated in the folder `target`; empty when none."""
    verdicts: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for axis in read_json(TargetFolder(target).validation).get("axes") or ():
            verdicts[str(axis["axis"])] = str(axis["answer"])
    return verdicts


def plan_line(target: Path) -> str:
    """A ledger's line for the plan in the folder `target`: another plan or verdict is another.

    OSError or ValueError when there is no plan that can be read.
    """
    # Without it each repetition of a command would be another plan, and another run in the log.
    numbers = dict(read_json(TargetFolder(target).plan))
    numbers.pop("source", None)  # when and by which command it was made
    return f"plan {target.name} {digest([numbers, axis_verdicts(target)])}"


def log_folder(folder: Path, name: str) -> Path:
    """The folder of a log within the study's, made where it is not there yet."""
    private_folder(folder / name)
    return folder / name


class Logger(Protocol):
    """A mirror of the study elsewhere; its failures never fail a trial.

    It is told of every trial that was just trained and, when a sweep begins, of all that the
    study holds, so that what a kill kept from it is made up for: what it has already it leaves
    alone. A sentence that it returns is told to the user, once.
    """

    def log(self, folder: Path, result: Result) -> str | None:
        """Take one result of the study in `folder`."""

    def plan(self, folder: Path, target: Path) -> str | None:
        """Take the plan in the `TargetFolder` of that study, and its verdict if there is one."""


def notice_of(tell: Callable[[], str | None]) -> str | None:
    """What the user should know after a logger was told something, a failure included."""
    try:
        return tell()
    except Exception as error:
        return f"the log failed ({type(error).__name__}: {error}); no result is lost"


@dataclass(frozen=True, kw_only=True)
class NoLog:
    """Logs nothing: the study's records hold every curve."""

    def log(self, folder: Path, result: Result) -> None:
        """Do nothing."""

    def plan(self, folder: Path, target: Path) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """Keeps one JSON object a trial in `trials.jsonl` in the study's folder."""

    _ledgers: Ledgers = field(default_factory=Ledgers, init=False, repr=False, compare=False)

    def log(self, folder: Path, result: Result) -> None:
        """Append the result with its curve, unless it is there."""
        self._ledgers.at(folder / "trials.jsonl").add(json.dumps(to_json(result)))

    def plan(self, folder: Path, target: Path) -> None:
        """Do nothing: the plan is JSON beside it."""
