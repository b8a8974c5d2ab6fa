"""How many trials a pack holds, and how many jobs run at a time: measured where jobs run.

A model that brings its process down must not bring down the driver, so that with worker processes
the driver never trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sweeper.data.corpus import Corpus
from sweeper.launch.executor import Executor
from sweeper.runner.tasks import MeasurePack
from sweeper.training.pack import Pack
from sweeper.training.packing import MeasuredSize, measure_pack_size, step_seconds
from sweeper.training.prepare import prepare
from sweeper.trial import Trial

PackSize = int | Literal["auto"]

MEASURING_PAYS = 60.0
"""Seconds of work in one process above which it is worth measuring whether several are faster."""
MIN_GAIN = 1.05
"""Several processes must be so much faster than one."""
UNMEASURED_SIZE = 16
"""Trials of a pack where nothing can be measured: a login node cannot tell what fits a GPU."""

_MEASURED: dict[str, MeasuredSize] = {}
"""Pack sizes by specification, device and layout, found by this process or its workers."""


def measure_here(
    trials: tuple[Trial, ...], corpus: Corpus, device: str, size: PackSize
) -> tuple[int, float]:
    """Pack size and seconds of a trial's step, measured in this process; once for a spec."""
    if size != "auto":
        part = Pack(trials=trials[:size], corpus=corpus)
        return size, step_seconds(part, device) / len(part.trials)
    key = _key(trials[0], device, 1)
    measured = _MEASURED.get(key)
    if measured is None or not measured.covers(len(trials)):
        measured = _MEASURED[key] = measure_pack_size(Pack(trials=trials, corpus=corpus), device)
    return measured.size, measured.seconds


def _key(trial: Trial, device: str, layout: int) -> str:
    return f"{trial.spec.digest} {device} {layout}"


class PackSizes:
    """Pack sizes for one sweep, and the layout of its executor."""

    def __init__(
        self, size: PackSize, corpus: Corpus, device: str, notify: Callable[[str], None]
    ) -> None:
        """`size` is that of a pack, "auto" to measure it."""
        self.fixed, self.corpus, self.device, self.notify = size, corpus, device, notify
        self._layout: int | None = None

    @property
    def layout(self) -> int | None:
        """How many jobs run at a time; None where every job is a process of its own."""
        return self._layout

    @staticmethod
    def elsewhere(size: PackSize) -> int:
        """The size where nothing can be measured."""
        return UNMEASURED_SIZE if size == "auto" else size

    def size(self, trials: Sequence[Trial], executor: Executor) -> int:
        """Trials to a pack of these, which are of one specification."""
        if self.fixed != "auto" or self._layout is None:
            return self.elsewhere(self.fixed)
        fair = -(-len(trials) // self._layout)  # what each of the jobs at a time would get
        if fair == 1:
            return 1
        measured = self._measured(trials[:fair], executor, self._layout)
        if measured is None:
            return 1  # what cannot be trained fails by itself, trial by trial, with its reason
        rounds = -(-len(trials) // (min(measured.size, fair) * self._layout))
        return -(-len(trials) // (rounds * self._layout))

    def choose_layout(self, trials: Sequence[Trial], executor: Executor) -> None:
        """Choose how many jobs run at a time, once: what is faster for the largest of `trials`."""
        if self._layout is not None or not executor.layouts:
            return
        least, most = executor.layouts[0], executor.layouts[-1]
        largest = _largest(trials)
        self._layout = least
        if (count := min(most, len(largest))) > least:
            self._layout = self._faster(largest, executor, count)
        executor.use(self._layout)

    def _faster(self, trials: Sequence[Trial], executor: Executor, count: int) -> int:
        """1, or `count`: the number of workers that does more trial-steps a second."""
        alone = self._measured(trials, executor, 1)
        steps = prepare(trials[0].spec).train.steps
        if alone is None or alone.seconds * steps * len(trials) < MEASURING_PAYS:
            return 1
        gain = self._rate(trials, executor, count) * alone.seconds
        better = count if gain > MIN_GAIN else 1
        self.notify(
            f"{count} worker processes do {gain:.2f} times the steps of one, as measured: "
            f"{better} used"
        )
        return better

    def _rate(self, trials: Sequence[Trial], executor: Executor, count: int) -> float:
        """Trial-steps a second of so many workers at once; 0 when one of them ends."""
        key = _key(trials[0], self.device, count)
        if key not in _MEASURED:
            task = self._task(trials[: -(-len(trials) // count)])
            answers = [_read(answer) for answer in executor.call([task] * count, count)]
            measured = [answer for answer in answers if answer is not None]
            if len(measured) < len(answers):
                return 0.0
            _MEASURED[key] = max(measured, key=lambda one: one.seconds)
        return count / _MEASURED[key].seconds

    def _measured(
        self, trials: Sequence[Trial], executor: Executor, layout: int
    ) -> MeasuredSize | None:
        """The best pack of at most `trials`; None when they cannot be trained.

        Measured once for a specification, and for more trials again.
        """
        key = _key(trials[0], self.device, layout)
        measured = _MEASURED.get(key)
        if measured is None or not measured.covers(len(trials)):
            [answer] = executor.call([self._task(trials)], layout)
            if (measured := _read(answer)) is not None:
                _MEASURED[key] = measured
        return measured

    def _task(self, trials: Sequence[Trial]) -> MeasurePack:
        return MeasurePack(pack=Pack(trials=tuple(trials), corpus=self.corpus), device=self.device)


def _read(answer: Mapping[str, Any] | None) -> MeasuredSize | None:
    return None if answer is None else MeasuredSize(**answer)


def _largest(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Those of the specification that has the most to compute."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.spec.digest, []).append(trial)

    def work(group: list[Trial]) -> int:
        prepared = prepare(group[0].spec)
        return len(group) * prepared.train.steps * prepared.parameters()

    return max(groups.values(), key=work)
