"""What a call shows while it works: a bar in a notebook, elsewhere what the command line shows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from io import StringIO, TextIOBase
from threading import RLock
from typing import Any

from rich.console import Console

from sweeper.api.words import CALLS, in_notebook
from sweeper.errors import Call, as_text, call_words, spelled
from sweeper.files import take_damaged
from sweeper.registry import only_named
from sweeper.report.output import Output
from sweeper.report.present import ask
from sweeper.report.sections import Shown
from sweeper.study.setup import asked
from sweeper.verbs.requests import Request

NOTE = "Note: "
COLUMNS = 100
"""The width of texts that a call keeps."""
TURNS = RLock()
"""Calls of several threads take turns: a process has one model of a specification in training."""


class NotebookBar(TextIOBase):
    """A bar with the sentences told so far, in one place of a notebook; needs no ipywidgets."""

    def __init__(self) -> None:
        self._display: Any = import_module("IPython.display")
        self._place: Any = None
        self._lines: list[str] = []
        self._bar = ""

    def __call__(self, share: float, job: str, facts: str) -> None:
        """Draw how far the work is."""
        filled = "background:#31688e;height:100%;border-radius:3px"
        empty = "background:#8884;height:8px;border-radius:3px;max-width:36rem;margin:.3rem 0"
        self._bar = (
            f"<div>{escape(job)}: {escape(facts)}</div>"
            f'<div style="{empty}"><div style="{filled};width:{share:.1%}"></div></div>'
        )
        self._draw()

    def write(self, text: str) -> int:
        """Show what is told to watchers."""
        if lines := [line for line in text.splitlines() if line.strip()]:
            self._lines += lines
            self._draw()
        return len(text)

    def close(self) -> None:
        """Give the place up: what the call answers says all of it."""
        if self._place is not None:
            self._place.update(self._display.HTML(""))

    def _draw(self) -> None:
        lines = "".join(f'<div style="opacity:.75">{escape(line)}</div>' for line in self._lines)
        look = "font:.85rem/1.4 system-ui,sans-serif"
        card = self._display.HTML(f'<div style="{look}">{lines}{self._bar}</div>')
        # One place that is drawn over: a new output for each step would fill the notebook.
        if self._place is None:
            self._place = self._display.display(card, display_id=True)
        else:
            self._place.update(card)


@dataclass
class Kept(Output):
    """An `Output` that keeps what a verb says: its text, its notes, and how it ended."""

    answers: list[str] = field(default_factory=list, init=False)
    early: list[str] = field(default_factory=list, init=False)
    """Notes that were told before the work began."""
    places: dict[str, Any] = field(default_factory=dict, init=False)
    record: dict[str, Any] = field(default_factory=dict, init=False)

    @classmethod
    def for_call(cls) -> Kept:
        """Progress is shown in a notebook by a bar, elsewhere on stderr."""
        # In a notebook rich shows each text below the cell, whatever file it is given.
        plain: Any = {"force_jupyter": False}
        file: Any = (bar := NotebookBar() if in_notebook() else None)
        if bar:  # tqdm's, which Optuna imports, where ipywidgets is missing: this bar needs none
            warnings.filterwarnings("ignore", message="IProgress not found")
        return cls(
            people=Console(file=StringIO(), width=COLUMNS, color_system=None, **plain),
            # Wide, so that the notebook breaks lines and not rich.
            watchers=Console(file=file, stderr=not bar, width=10_000 if bar else None, **plain),
            bar=bar,
            spelling=CALLS,
        )

    def end(self, shown: Shown) -> None:
        """Keep the answer, its files and its document."""
        self._terminal.more = "in document"
        super().end(replace(shown, next=()))
        for command in filter(None, shown.next):
            line = f"Next, {command.why}: {CALLS.call(command.call)}"
            self.people.print(line, highlight=False, markup=False, soft_wrap=True)
        self.answers.append(spelled(as_text(shown.answer), CALLS))
        self.places.update(shown.places)
        self.record.update(shown.document)

    def tell(self, text: str) -> None:
        """Show a sentence while the work goes on; a note is kept, as the bar goes."""
        super().tell(text)
        if text.startswith(NOTE):
            self.early.append(text.removeprefix(NOTE))

    def close(self) -> None:
        """Take the bar away, where there is one: the work is done, and its answer is shown."""
        if isinstance(self.bar, NotebookBar):
            self.bar.close()

    @property
    def kept_notes(self) -> list[str]:
        """What was noted, in the words of calls."""
        return [*dict.fromkeys([*self.early, *self._notes])]

    @property
    def text(self) -> str:
        """What people would have read."""
        file: Any = self.people.file
        return str(file.getvalue()).strip()


def answered(request: Request, command: Sequence[str] = ()) -> tuple[int, Kept]:
    """Do what is asked: the exit code, and what there is to say.

    A training `command` stands behind `--` in what is recorded.
    """
    output = Kept.for_call()
    call = request.call
    line = call_words(Call(call.verb, *call.arguments, command=tuple(map(str, command))))
    take_damaged()  # of an earlier call in this process
    with TURNS, only_named(), asked(line):
        code, _ = ask(request, output)
        output.flush()
    output.close()
    return int(code), output
