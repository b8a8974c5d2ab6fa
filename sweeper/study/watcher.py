"""Who is told of work while it goes on, whichever work it is, and who makes sentences for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from sweeper.errors import Call, Keyword
from sweeper.stats.ladder import LadderSoFar
from sweeper.trial import Result, Trial

if TYPE_CHECKING:
    from sweeper.launch.executor import JobState
    from sweeper.study.cost import TrialSeconds

T = TypeVar("T")


class ProgressListener(Protocol):
    """Is told of a sweep's work in the order in which it happens."""

    def watch(self, states: Callable[[], list[JobState]]) -> None:
        """Jobs can be asked for from here on."""

    def watch_ladder(self, so_far: Callable[[], LadderSoFar]) -> None:
        """The ladder that is trained can be asked for from here on."""

    def proposed(self, finished: int, missing: Sequence[Trial]) -> None:
        """The loop is about to train `missing`; `finished` trials of this job are done already."""

    def advanced(self, batch: Sequence[Trial], before: float, fraction: float) -> None:
        """The job of a batch has come from the fraction `before` of its work to this one."""

    def finished(self, result: Result) -> None:
        """A trial was trained and recorded."""

    def announce(self, sentence: str, expected: int | None = None) -> None:
        """Say something at once; `expected` trials are likely needed in all, where it changed."""


class ProgressDisplay(ProgressListener, Protocol):
    """A listener that shows how far work is, from `with` to its end."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class Words(Protocol):
    """Who makes sentences of decisions: records keep them beside the codes."""

    def sentence(self, decision: object) -> str:
        """A decision for people."""

    def worded(self, decision: T) -> T:
        """The same decision, its reasons and advice in words, as its record has them."""


class Watcher(Words, Protocol):
    """Who is told of a verb's work while it goes on: a terminal, a notebook, nobody."""

    @property
    def is_live(self) -> bool:
        """Whether somebody looks on, at a view that is drawn over."""

    def tell(self, *text: str | Keyword | Call) -> None:
        """A remark, while the work goes on."""

    def look(self, answer: Any, *, news: bool = True) -> None:
        """An answer that others will follow, as of a run that goes on.

        Without `news` it differs from the one before in what is shown at a live view alone.
        """

    def progress(
        self,
        folder: Path,
        job: str,
        *,
        planned: int,
        seconds: TrialSeconds,
        at_once: float = 1.0,
        page: bool = False,
        heard: Callable[[Result], None] | None = None,
        kept: Sequence[Result] = (),
        command: str = "",
    ) -> ProgressDisplay:
        """What listens to trials of a job, and writes how far it is into `folder`.

        With `page` the study's page is written as results come.
        """
