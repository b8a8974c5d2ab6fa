"""Trials driven to their results by the loop, as a search drives its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.launch.executor import Launcher, Runner
from sweeper.study.lock import CANCEL_FILE, cancel_requested
from sweeper.sweep.loop import Loop
from sweeper.trial import Result, Trial

if TYPE_CHECKING:
    from sweeper.data.corpus import Corpus

ENGINE: dict[str, Any] = {"device": "cpu", "compile": "off"}


@dataclass(kw_only=True)
class TrialSweep:
    """Names trials, takes results, and keeps what the user would read.

    `more` names trials that become wanted once so many results are known, `later` are some that may
    be.
    """

    trials: Sequence[Trial]
    corpus: Corpus
    folder: Path
    more: Callable[[int], Sequence[Trial]] = lambda count: ()
    later: Sequence[Trial] = ()
    results: dict[str, Result] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    work_done: float = 0.0
    times_recorded: int = 0

    def pending(self) -> list[Trial]:
        wanted = {trial.key: trial for trial in (*self.trials, *self.more(len(self.results)))}
        return [trial for key, trial in wanted.items() if key not in self.results]

    def runner(self, launcher: Launcher, **engine: Any) -> Runner:
        from sweeper.engine.runner import Engine

        settings = Engine(**{**ENGINE, **engine})
        return settings.open(self.corpus, launcher, self.folder, self._notify)

    def loop(self, launcher: Launcher, *, wait: bool = True, **engine: Any) -> Loop:
        # As a driver does that takes the study's lock.
        (self.folder / CANCEL_FILE).unlink(missing_ok=True)
        return Loop(
            runner=self.runner(launcher, **engine),
            launcher=launcher,
            folder=self.folder,
            record=self._record,
            notify=self._notify,
            advanced=self._advanced,
            may_follow=lambda: self.later,
            wait=wait,
            cancelled=lambda: cancel_requested(self.folder),
        )

    def run(self, launcher: Launcher, *, wait: bool = True, **engine: Any) -> dict[str, Result]:
        loop = self.loop(launcher, wait=wait, **engine)
        loop.run(self.pending)
        loop.tidy(self.results.__contains__)
        return self.results

    def _record(self, results: Sequence[Result]) -> None:
        self.times_recorded += len(results)
        for result in results:
            assert result.key not in self.results, "a trial came twice"
            self.results[result.key] = result

    def _notify(self, sentence: str) -> None:
        self.notices.append(sentence)

    def _advanced(self, batch: Sequence[Trial], before: float, now: float) -> None:
        self.work_done += (now - before) * len(batch)


def without_times(results: dict[str, Result]) -> dict[str, Result]:
    """Without what differs from run to run. NaN becomes a text, which equals itself."""
    none: dict[str, Any] = {"seconds": 0.0, "finished_at": 0.0}
    return {
        key: replace(each, **none, objective=str(each.objective), heldout=str(each.heldout))
        for key, each in results.items()
    }
