"""What a verb gives back: decisions with codes and numbers, records, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from sweeper.errors import Text


class Outcome(IntEnum):
    """How a verb ended; its number is the exit code of the command line."""

    DONE = 0
    FAILED = 1
    NOT_ABLE = 2
    NOT_VALIDATED = 3
    CANNOT_SAY = 4


@dataclass(frozen=True, kw_only=True)
class VerbAnswer:
    """The base of what all verbs answer; `notes` are what whoever asked should know besides."""

    outcome: Outcome = Outcome.DONE
    notes: tuple[Text, ...] = ()
