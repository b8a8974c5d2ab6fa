"""Where a command's words go, its exit codes, and the study that it is about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sweeper.errors import BadInput
from sweeper.study import check_name, latest
from sweeper.trial import encode

DONE, FAILED, NOT_PROVEN = 0, 1, 3
"""Exit codes beside 2 (bad input) and 130 (interrupted)."""


@dataclass(frozen=True)
class Output:
    """Where things go: tables and sentences to `people`, one JSON document to stdout if asked."""

    people: Console
    json: bool = False

    def document(self, value: object) -> None:
        """Print the command's one JSON document, under `--json`."""
        if self.json:
            print(json.dumps(encode(value), indent=2))

    def say(self, text: str) -> None:
        """A sentence for people, as it is."""
        self.people.print(text, highlight=False, markup=False, soft_wrap=True)

    def notes(self, notices: Sequence[str]) -> None:
        """What a study has to tell."""
        for notice in notices:
            self.say(f"Note: {notice}")


def find_study(name: str | None, root: Path) -> str:
    """`name` if that study exists, else the latest; BadInput when there is none."""
    if name is not None:
        if not (root / check_name(name) / "config.yaml").is_file():
            raise BadInput(f"there is no study {name!r} in {root}; `sweeper status` lists them")
        return name
    found = latest(root)
    if found is None:
        raise BadInput(f"there is no study in {root} yet: run `sweeper search` first")
    return found
