"""What a verb prints and how it ends, and the study that it is about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sweeper.errors import SHELL, Spelling, as_text, call_words, printable, spelled
from sweeper.files import take_damaged, write_atomically
from sweeper.records import to_json
from sweeper.report.sections import Commands, Item, Sentence, Shown, Verbatim
from sweeper.report.terminal import Terminal, fits
from sweeper.report.warned import WARNED
from sweeper.study.folder import StudyFolder

if TYPE_CHECKING:
    from sweeper.sweep.progress import ProgressBar


@dataclass
class Output:
    """Where things go: one screen at the end to `people`, one JSON document to stdout if asked.

    `watchers` see progress, on stderr: what a verb says at its end is the same however much
    of the work it found done. With `verbose` all is said, whether a screen has room or not; its
    `spelling` is that of keywords and commands. A notebook gives a `bar`, which is told the share
    that is done, what is at work and how far.
    """

    people: Console
    json: bool = False
    watchers: Console = field(default_factory=lambda: Console(stderr=True))
    verbose: bool = False
    spelling: Spelling = SHELL
    bar: ProgressBar | None = None
    _notes: list[str] = field(default_factory=list, init=False)
    _items: list[Item] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._terminal = Terminal(self.people, verbose=self.verbose, spelling=self.spelling)

    def show(self, *items: Item) -> None:
        """Put tables and sentences on the verb's screen, which is printed at its end."""
        self._items += items

    def tell(self, text: str) -> None:
        """A sentence for watchers, on stderr."""
        self.watchers.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def flush(self, end: Sequence[Item] = (), folder: Path | None = None) -> None:
        """Print what was to be shown so far, and the `end` of the verb.

        What libraries warned of is kept in the `folder`.
        """
        items, self._items = self._items, []
        self._terminal.print(items)
        self._terminal.print(end)
        if folder is not None and folder.is_dir() and WARNED:
            with suppress(OSError):
                write_atomically(StudyFolder(folder).warnings, "\n".join([*WARNED, ""]))

    def end(self, shown: Shown) -> None:
        """All of an answer; its last three lines are what was found, where it lies, what is next.

        Without any places there is no such line, nor without a command that goes on from here;
        several are typed one after the other. The document gets them as `next`, a list of
        {command, why}.
        """
        for remark in shown.before:
            self.tell(remark)
        self.show(*shown.items)
        self.notes([spelled(as_text(note), self.spelling) for note in shown.notes])
        # Readers deep below pass over damaged records; a note of the verb may have named some
        # already.
        damaged = {str(path): why for path, why in take_damaged().items()}
        notes_text = "\n".join(self._notes)
        new = [f"{path}: {why}" for path, why in damaged.items() if path not in notes_text]
        self.notes(new)
        end: list[Item] = [Sentence(shown.answer)]
        if shown.places:
            where = [f"{what}: {path}" for what, path in shown.places.items()]
            line = "; ".join(where)
            lines = [line] if fits(line, self.people) else where
            end += [Verbatim(f"{text[:1].upper()}{text[1:]}") for text in lines]
        commands = [command for command in shown.next if command is not None]
        if commands:
            lines_to_type = [call_words(command.call) for command in commands]
            end.append(Commands(f"Next, {commands[0].why}:", lines_to_type))
        self.flush(end, shown.folder)
        if self.json:
            more = {"damaged": damaged} if damaged else {}
            following = [*shown.document.get("next", ()), *(each.document for each in commands)]
            record = to_json({**shown.document, **more, "next": following})
            print(json.dumps(record, indent=None if shown.one_line else 2))

    def notes(self, notices: Sequence[str]) -> None:
        """What a study has to tell."""
        self._notes.extend(notices)
        for notice in notices:
            self.show(Sentence(f"Note: {notice}"))
