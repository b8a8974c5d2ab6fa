"""What a verb answered, made ready for a reader: how both mouths ask, wait and show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sweeper.errors import Call, Keyword, spelled
from sweeper.report.output import Output
from sweeper.report.progress_bar import LivePage, SweepProgress
from sweeper.report.sections import Item, Shown
from sweeper.report.sentences import Wording
from sweeper.study.watcher import Watcher
from sweeper.sweep.progress import TimeLeft
from sweeper.verbs.answer import VerbAnswer
from sweeper.verbs.listed import module_of
from sweeper.verbs.requests import Request

PRESENTERS: dict[str, str] = {
    "search": "sweeper.report.search_result",
    "report": "sweeper.report.study_page",
    "compare": "sweeper.evidence.compare.page",
    "check": "sweeper.report.checked",
    "predict": "sweeper.evidence.predict.page",
    "transfer": "sweeper.report.transferred",
    "cancel": "sweeper.report.standing",
    "status": "sweeper.report.standing",
    "doctor": "sweeper.report.hardware",
    "follow": "sweeper.evidence.follow.page",
    "explain": "sweeper.report.prescribed",
    "export": "sweeper.report.prescribed",
    "judge": "sweeper.evidence.judge.page",
}
"""The module of each verb whose `presented` makes sections of its answer."""


@dataclass
class OutputWatcher(Wording):
    """A watcher of a `verb` that writes to an output: a terminal's, or a notebook's."""

    output: Output
    verb: str = ""
    has_looked: bool = False

    @property
    def sentences(self) -> Mapping[type, Callable[[Any], str]]:
        """All sentences, those of the verb's own decisions too, which lie with what shows it."""
        own = getattr(import_module(PRESENTERS[self.verb]), "SENTENCES", {})
        return {**super().sentences, **own}

    @property
    def is_live(self) -> bool:
        """Whether people look at a terminal."""
        return self.output.people.is_terminal

    def tell(self, *text: str | Keyword | Call) -> None:
        """A remark, while the work goes on."""
        self.output.tell(spelled(text, self.output.spelling))

    def look(self, answer: VerbAnswer, *, news: bool = True) -> None:
        """Draw a live view over, or print what is new."""
        looked: Callable[..., Sequence[Item]] = import_module(PRESENTERS[self.verb]).looked
        items, self.has_looked = looked(answer, live=self.is_live), True
        self.output.people.clear()
        if news or self.is_live:
            self.output.show(*items)
            self.output.flush()

    def progress(
        self, folder: Path, job: str, *, page: bool = False, **settings: Any
    ) -> SweepProgress:
        """A bar on a terminal or in a notebook, lines elsewhere; with `page` the study's page."""
        written = LivePage(folder, self.output.tell) if page else None
        lasts = TimeLeft(settings.pop("seconds"), settings.pop("at_once", 1.0))
        return SweepProgress(folder, self.output, job, time_left=lasts, page=written, **settings)


class Silent(Wording):
    """A watcher for work that is over at once: nobody is told of it."""

    is_live = False

    def tell(self, *text: str | Keyword | Call) -> None:
        """Say nothing."""

    def look(self, answer: VerbAnswer, *, news: bool = True) -> None:
        """Show nothing."""

    def progress(self, *_: Any, **settings: Any) -> SweepProgress:
        """Nothing that trains is watched in silence."""
        raise NotImplementedError


def perform(request: Request, watcher: Watcher) -> VerbAnswer:
    """Do what is asked; the heavy modules of its verb are imported now."""
    verb: Callable[[Request, Watcher], VerbAnswer] = getattr(
        import_module(module_of(type(request))), request.verb
    )
    return verb(request, watcher)


def present(verb: str, answer: VerbAnswer) -> Shown:
    """The answer of a verb in sections; its pages and figures are written now."""
    shows: Callable[..., Shown] = import_module(PRESENTERS[verb]).presented
    return shows(answer)


def ask(request: Request, output: Output) -> tuple[int, VerbAnswer]:
    """Ask, work, and show: the exit code, and the answer."""
    watcher = OutputWatcher(output, request.verb)
    answer = perform(request, watcher)
    # The last look gives its place to the answer.
    if watcher.has_looked:
        output.people.clear()
    output.end(present(request.verb, answer))
    return int(answer.outcome), answer
