"""Logs of finished trials beside the study's own record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sweeper.report.ledger import Ledgers
from sweeper.trial import Result


class Logger(Protocol):
    """A mirror of the study elsewhere; its failures never fail a trial.

    It is told of every trial that was just trained and, when a sweep begins, of all that the
    study holds, so that what a kill kept from it is made up for: what it has already it leaves
    alone. A sentence that it returns is told to the user, once.
    """

    def log(self, folder: Path, result: Result) -> str | None:
        """Take one result of the study in `folder`."""
        ...

    def plan(self, folder: Path, target: Path) -> str | None:
        """Take the plan in the folder `target` of that study, and its validation if there is one.

        They are the files `plan.json` and `validation.json`.
        """
        ...


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
        self._ledgers.at(folder / "trials.jsonl").add(json.dumps(result.to_json()))

    def plan(self, folder: Path, target: Path) -> None:
        """Do nothing: the plan is JSON beside it."""
