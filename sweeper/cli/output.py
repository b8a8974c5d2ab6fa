"""What a verb prints and how it ends, and the study that it is about."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sweeper.files import take_damaged
from sweeper.records import to_json
from sweeper.trial import Result

if TYPE_CHECKING:
    from sweeper.cli.next import NextCommand

DONE, FAILED, NOT_VALIDATED = 0, 1, 3
"""Exit codes beside 2 (bad input) and 130 (interrupted)."""


@dataclass(frozen=True)
class Output:
    """Where things go: tables and sentences to `people`, one JSON document to stdout if asked.

    `watchers` see progress, on stderr: what a verb says at its end is the same however much
    of the work it found done.
    """

    people: Console
    json: bool = False
    watchers: Console = field(default_factory=lambda: Console(stderr=True))
    _notes: list[str] = field(default_factory=list, init=False)

    def document(self, value: object) -> None:
        """Print the verb's one JSON document, under `--json`."""
        if self.json:
            print(json.dumps(to_json(value), indent=2))

    def say(self, text: str) -> None:
        """A sentence for people, as it is."""
        self.people.print(text, highlight=False, markup=False, soft_wrap=True)

    def tell(self, text: str) -> None:
        """A sentence for watchers, on stderr."""
        self.watchers.print(text, highlight=False, markup=False, soft_wrap=True)

    def end(
        self,
        answer: str,
        places: Mapping[str, object],
        document: Mapping[str, Any],
        *next_commands: NextCommand | None,
    ) -> None:
        """The last three lines of a verb: what was found, where it lies, what to type next.

        `places` are files by what they are, the first the one to open. Without any there is no
        such line, nor without a command that goes on from here; several are typed one after the
        other. The `document` gets them as `next`, a list of {command, why}.
        """
        # Readers deep below pass over damaged records; a note of the verb may have named some
        # already.
        damaged = {str(path): why for path, why in take_damaged().items()}
        notes_text = "\n".join(self._notes)
        self.notes([f"{path}: {why}" for path, why in damaged.items() if path not in notes_text])
        self.say(answer)
        if places:
            where = "; ".join(f"{what}: {path}" for what, path in places.items())
            self.say(f"{where[0].upper()}{where[1:]}")
        commands = [command for command in next_commands if command is not None]
        if commands:
            self.say(f"Next, {commands[0].why}: {' && '.join(map(str, commands))}")
        self.document(
            {
                **document,
                **({"damaged": damaged} if damaged else {}),
                "next": [{"command": str(command), "why": command.why} for command in commands],
            }
        )

    def tell_speed(self, results: Iterable[Result], since: float) -> None:
        """Throughput by size of what was trained since then, to watchers: no two runs are alike."""
        from sweeper.report.cost import speeds

        # How much a command computes is not known.
        recent = (r for r in results if r.finished_at >= since)
        for speed in speeds(r for r in recent if r.trial.spec.runner.get("name") == "engine"):
            self.tell(f"Speed at {speed}")

    def notes(self, notices: Sequence[str]) -> None:
        """What a study has to tell; wrapped between words on a terminal."""
        soft = not self.people.is_terminal
        self._notes.extend(notices)
        for notice in notices:
            self.people.print(f"Note: {notice}", highlight=False, markup=False, soft_wrap=soft)


def failures(results: Iterable[Result], runner: Mapping[str, Any]) -> list[str]:
    """Why trials of this `runner` failed, a sentence for each reason.

    Those of another command, or of other code, are never tried again.
    """
    tried = [r.error for r in results if r.status == "failed" and r.trial.spec.runner == runner]
    # Digests and numbers in an error are each trial's own: errors that differ in them alone are of
    # one kind, and the last one stands for all.
    kinds = [re.sub(r"[0-9a-f]{8,}|[\d.]+(e-?\d+)?", "#", error) for error in tried]
    last = dict(zip(kinds, tried, strict=True))
    return [
        f"{count} trial{'s' * (count > 1)} failed and will be tried again next time: {last[kind]}"
        for kind, count in Counter(kinds).most_common()
    ]


def diverged(results: Iterable[Result]) -> list[str]:
    """How many trials diverged, and the lowest eta of these: there a line has no point."""
    runs = [result for result in results if result.status == "diverged"]
    if not runs:
        return []
    etas = [run.trial.log2_hps["eta"] for run in runs if "eta" in run.trial.log2_hps]
    where = f", the lowest at eta 2^{min(etas):g}" if etas else ""
    return [f"{len(runs)} trial{'s' * (len(runs) > 1)} diverged{where}; such a loss is infinite"]
