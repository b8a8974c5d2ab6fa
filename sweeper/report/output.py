"""What a verb prints and how it ends, and the study that it is about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sweeper.errors import call_words
from sweeper.files import take_damaged, write_atomically
from sweeper.records import to_json
from sweeper.report.sections import Commands, Item, Sentence, Verbatim
from sweeper.report.terminal import Terminal, fits
from sweeper.report.warned import WARNED
from sweeper.study.folder import StudyFolder
from sweeper.table import printable

if TYPE_CHECKING:
    from sweeper.report.next import Next
    from sweeper.sweep.progress import ProgressBar


@dataclass
class Output:
    """Where things go: one screen at the end to `people`, one JSON document to stdout if asked.

    `watchers` see progress, on stderr: what a verb says at its end is the same however much
    of the work it found done. With `verbose` all is said, whether a screen has room or not. A
    notebook gives a `bar`, which is told the share that is done, what is at work and how far.
    """

    people: Console
    json: bool = False
    watchers: Console = field(default_factory=lambda: Console(stderr=True))
    verbose: bool = False
    one_line: bool = False
    bar: ProgressBar | None = None
    _notes: list[str] = field(default_factory=list, init=False)
    _folder: Path | None = field(default=None, init=False)
    _items: list[Item] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._terminal = Terminal(self.people, verbose=self.verbose)

    def within(self, folder: Path) -> None:
        """What libraries warned of is kept in this folder, the first that is named."""
        self._folder = self._folder or folder

    def document(self, value: object) -> None:
        """Print the verb's one JSON document, under `--json`."""
        if self.json:
            print(json.dumps(to_json(value), indent=None if self.one_line else 2))

    def show(self, *items: Item) -> None:
        """Put tables and sentences on the verb's screen, which is printed at its end."""
        self._items += items

    def tell(self, text: str) -> None:
        """A sentence for watchers, on stderr."""
        self.watchers.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def flush(self, end: Sequence[Item] = ()) -> None:
        """Print what was to be shown so far, and the `end` of the verb."""
        folder, items, self._items = self._folder, self._items, []
        self._terminal.print(items)
        self._terminal.print(end)
        if folder is not None and folder.is_dir() and WARNED:
            with suppress(OSError):
                write_atomically(StudyFolder(folder).warnings, "\n".join([*WARNED, ""]))

    def end(
        self,
        answer: str,
        places: Mapping[str, object],
        document: Mapping[str, Any],
        *next_commands: Next | None,
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
        new = [f"{path}: {why}" for path, why in damaged.items() if path not in notes_text]
        self.notes(new)
        end: list[Item] = [Sentence(answer)]
        if places:
            where = [f"{what}: {path}" for what, path in places.items()]
            line = "; ".join(where)
            lines = [line] if fits(line, self.people) else where
            end += [Verbatim(f"{text[:1].upper()}{text[1:]}") for text in lines]
        commands = [command for command in next_commands if command is not None]
        if commands:
            lines_to_type = [call_words(command.call) for command in commands]
            end.append(Commands(f"Next, {commands[0].why}:", lines_to_type))
        self.flush(end)
        self.document(
            {
                **document,
                **({"damaged": damaged} if damaged else {}),
                "next": [
                    *document.get("next", ()),
                    *(command.document for command in commands),
                ],
            }
        )

    def notes(self, notices: Sequence[str]) -> None:
        """What a study has to tell."""
        self._notes.extend(notices)
        for notice in notices:
            self.show(Sentence(f"Note: {notice}"))
