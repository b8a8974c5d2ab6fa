"""What logs share: what they have taken already, and what they make of a study's records."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from sweeper.files import append, private_folder, read_json
from sweeper.trial import Result, digest


class Ledger:
    """A file of lines that only grows, each of them in it once: what a log has taken.

    A line cut short by a kill is taken off it. OSError when it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        """Read what the file at `path` holds, if there is one."""
        self.path = path
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(path, len(whole))
        self._lines = {hash(line) for line in whole.splitlines()}

    def __contains__(self, line: str) -> bool:
        """Whether the file has this line."""
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
    short, longer = divmod(max(result.steps, count), count)
    ends = accumulate(short + (index < longer) for index in range(count))
    return list(zip(ends, result.curve, strict=True))


def axis_verdicts(target: Path) -> dict[str, str]:
    """The verdict of every axis that was validated in the folder `target`; empty when none."""
    verdicts: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for axis in read_json(target / "validation.json").get("axes") or ():
            verdicts[str(axis["axis"])] = str(axis["answer"])
    return verdicts


def plan_line(target: Path) -> str:
    """A ledger's line for the plan in the folder `target`: another plan or verdict is another.

    OSError or ValueError when there is no plan that can be read.
    """
    numbers = dict(read_json(target / "plan.json"))
    numbers.pop("source", None)  # when and by which command it was made
    return f"plan {target.name} {digest([numbers, axis_verdicts(target)])}"


def log_folder(folder: Path, name: str) -> Path:
    """The folder of a log within the study's, made where it is not there yet."""
    private_folder(folder / name)
    return folder / name
