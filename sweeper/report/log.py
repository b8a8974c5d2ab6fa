"""Logs of finished trials beside the study's own record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sweeper.trial import Result


class Logger(Protocol):
    """Told of every trial that was just trained; its failures never fail a trial."""

    def log(self, folder: Path, result: Result) -> None:
        """Take one result of the study in `folder`."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoLog:
    """Logs nothing: the study's records hold every curve."""

    def log(self, folder: Path, result: Result) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """Appends one JSON object a trial to `trials.jsonl` in the study's folder."""

    def log(self, folder: Path, result: Result) -> None:
        """Append the result with its curve."""
        with (folder / "trials.jsonl").open("a") as file:
            file.write(json.dumps(result.to_json()) + "\n")
