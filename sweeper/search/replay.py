"""A search replayed against the results so far: what it has, and what it lacks.

A strategy is a pure function of its history, so a search's state follows from its results, whoever
keeps them: a study of ours (`sweep/study_replay.py`), or one of Optuna's (`optuna/enqueue.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from sweeper.search.strategy import History
from sweeper.trial import Result

T = TypeVar("T")
"""What is to be run: a point, or the trial that is made of one."""


class SearchReplay(ABC, Generic[T]):
    """A search replayed against the results so far, which goes on from where it stopped.

    Only results that the strategy asked for enter its history, in the order in which it asked. A
    study may hold other trials too, and trials finish in any order: with these a resumed or
    repeated search would see another history and take another way.

    A result must not disappear between two calls: the strategy is not asked again about it.
    """

    def __init__(self, *, separable: bool) -> None:
        self._separable = separable
        self._complete = History()
        self._batch: list[T] = []
        self._asked: set[Hashable] = set()

    @abstractmethod
    def _proposed(self, history: History) -> list[T]:
        """What the strategy asks for after `history`."""

    @abstractmethod
    def _key(self, asked: T) -> Hashable:
        """Equal for what is run once."""

    @abstractmethod
    def _result(self, asked: T) -> Result | None:
        """The result, in the words of whoever keeps it."""

    def _seen(self, asked: T, result: Result) -> Result:
        return result

    def missing(self) -> list[T]:
        """What the strategy lacks to go on; empty when it has nothing more to propose."""
        # A batch enters the history whole, in the order of its proposal: results of a batch that
        # is half done depend on which job was faster.
        while not (missing := [asked for asked in self._batch if self._result(asked) is None]):
            for result in self._results_of(self._batch):
                self._complete.add(result)
            self._batch = self._proposed(self._complete)
            if not self._batch:
                return []
        # Lines that are ahead of others need not wait for them, once all that these lack is in
        # jobs. Not before: after a kill the rest of a batch would be trained with what comes next.
        keys = {self._key(asked) for asked in missing}
        if keys <= self._asked and self._separable:
            missing += self._ahead()
        self._asked |= keys
        return list({self._key(asked): asked for asked in missing}.values())

    def _ahead(self) -> list[T]:
        """What a separable strategy lacks beyond its last batch, which is not complete yet.

        It is asked with the results of the batch so far, and again as long as all of what it
        proposes has some: a line that is three rounds ahead is found in three turns.
        """
        history = self.history()
        while True:
            proposed = self._proposed(history)
            results = self._results_of(proposed)
            if not results:
                return proposed
            for result in results:
                history.add(result)

    def history(self) -> History:
        """All results that the strategy asked for, in the order in which it asked."""
        return History([*self._complete.results, *self._results_of(self._batch)])

    def _results_of(self, batch: Iterable[T]) -> list[Result]:
        pairs = ((asked, self._result(asked)) for asked in batch)
        return [self._seen(asked, result) for asked, result in pairs if result is not None]

    def result_counts(self) -> tuple[int, int]:
        """How many results there are: of complete batches, and in all."""
        complete = len(self._complete.results)
        return complete, complete + sum(self._result(asked) is not None for asked in self._batch)
