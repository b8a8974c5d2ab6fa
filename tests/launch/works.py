"""What a launcher is given in tests, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.data.corpus import Corpus
from sweeper.launch.launcher import Launcher, Work
from sweeper.trial import Result, Trial


@dataclass(kw_only=True)
class Desk:
    """Names trials, takes results, and keeps what was told.

    `more` names trials that become wanted once so many results are known.
    """

    trials: Sequence[Trial]
    corpus: Corpus
    folder: Path
    more: Callable[[int], Sequence[Trial]] = lambda known: ()
    known: dict[str, Result] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    done: float = 0.0
    asked: int = 0

    def pending(self) -> list[Trial]:
        self.asked += 1
        wanted = {trial.key: trial for trial in (*self.trials, *self.more(len(self.known)))}
        return [trial for key, trial in wanted.items() if key not in self.known]

    def watch(self, trials: float) -> None:
        self.done += trials

    def work(self) -> Work:
        return Work(
            corpus=self.corpus,
            folder=self.folder,
            pending=self.pending,
            watch=self.watch,
            tell=self.told.append,
        )

    def run(self, launcher: Launcher) -> dict[str, Result]:
        """All results by key; each must come once."""
        for results in launcher.run(self.work()):
            for result in results:
                assert result.key not in self.known, "a trial came twice"
                self.known[result.key] = result
        return self.known


def plain(results: dict[str, Result]) -> dict[str, Result]:
    """Without what differs from run to run: times. NaN becomes a text, which equals itself."""
    return {
        key: replace(
            result,
            seconds=0.0,
            finished_at=0.0,
            objective=str(result.objective),  # type: ignore[arg-type]
            heldout=str(result.heldout),  # type: ignore[arg-type]
        )
        for key, result in results.items()
    }
