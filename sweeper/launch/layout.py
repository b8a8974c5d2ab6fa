"""How many workers a machine is worth, and packs for them: measured in the workers themselves.

A model that brings its process down must not bring down the driver, which never trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sweeper.launch.job import describe
from sweeper.launch.launcher import Work
from sweeper.launch.packs import PackQueue, PackSize
from sweeper.launch.pool import Pool
from sweeper.launch.seats import cores, on_cpu, on_gpus
from sweeper.launch.worker import Message
from sweeper.training.packing import Measured
from sweeper.training.prepare import prepare
from sweeper.trial import Trial

WORTH = 60.0
"""Seconds of work in one process above which it is worth measuring whether several are faster."""
GAIN = 1.05
"""Several processes must be so much faster than one."""

_MEASURED: dict[str, Measured] = {}
"""Pack sizes that workers measured, by specification, device, threads and number of workers."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Makes the pool of workers for a run; logs go to `folder`."""

    work: Work
    folder: Path
    device: str
    hang: float | None

    @property
    def seen(self) -> str:
        """The device as a worker sees it: of GPUs it has its own alone."""
        return "cuda" if self.device.startswith("cuda") else self.device

    def pool(self, workers: int | Literal["auto"], trials: Sequence[Trial]) -> Pool:
        """`workers` of them; "auto" is one a GPU, or on a CPU what is faster for `trials`."""
        for log in self.folder.glob("worker-*.log"):
            log.unlink(missing_ok=True)
        if self.device.startswith("cuda"):
            seats = on_gpus(self.device, None if workers == "auto" else workers)
            return Pool(self.folder, seats, self.hang)
        if workers != "auto":
            return self._on_cpu(workers)
        if self.device != "cpu":
            return self._on_cpu(1)
        return self._faster(_largest(trials))

    def _on_cpu(self, workers: int) -> Pool:
        return Pool(self.folder, on_cpu(workers), self.hang)

    def _faster(self, trials: Sequence[Trial]) -> Pool:
        """One worker with all threads, or one a core, by trial-steps a second."""
        count = min(cores(), len(trials))
        one = self._on_cpu(1)
        if count == 1:
            return one
        try:
            return self._compared(one, count, trials)
        except BaseException:
            one.stop()
            raise

    def _compared(self, one: Pool, count: int, trials: Sequence[Trial]) -> Pool:
        alone = self.measured(one, trials)
        if alone is None:
            return one
        if alone.seconds * prepare(trials[0].spec).train.steps * len(trials) < WORTH:
            return one
        many = self._on_cpu(count)
        try:
            together = self._rate(many, trials)
        except BaseException:
            many.stop()
            raise
        gain = together * alone.seconds
        better, other = (many, one) if gain > GAIN else (one, many)
        other.stop()
        threads = [seats[0].threads for seats in (one.seats, many.seats)]
        self.work.tell(
            f"{count} worker processes of {threads[1]} threads do {gain:.2f} times the steps of "
            f"one of {threads[0]}, as measured: {len(better.seats)} used"
        )
        return better

    def _rate(self, many: Pool, trials: Sequence[Trial]) -> float:
        """Trial-steps a second of all workers at once; 0 when one of them ends."""
        key = self._key(many, trials[0])
        if key not in _MEASURED:
            share = trials[: -(-len(trials) // len(many.seats))]
            if not many.fill():
                return 0.0
            answers = many.ask(dict.fromkeys(many.workers, self._question(share)))
            found = [measured for answer in answers if (measured := _read(answer))]
            if len(found) < len(answers):
                return 0.0
            _MEASURED[key] = max(found, key=lambda measured: measured.seconds)
        return len(many.seats) / _MEASURED[key].seconds

    def measured(self, pool: Pool, trials: Sequence[Trial]) -> Measured | None:
        """The best pack of at most `trials`; None when they cannot be trained.

        Measured once a specification and for more trials again. A worker of the pool must be free.
        """
        key = self._key(pool, trials[0])
        known = _MEASURED.get(key)
        if known is None or not known.serves(len(trials)):
            worker = pool.free()
            assert worker is not None
            [answer] = pool.ask({worker: self._question(trials)})
            if (known := _read(answer)) is not None:
                _MEASURED[key] = known
        return known

    def _key(self, pool: Pool, trial: Trial) -> str:
        seats = [seat.threads for seat in pool.seats]
        return f"{trial.spec.digest} {self.device} {seats}"

    def _question(self, trials: Sequence[Trial]) -> Message:
        return {
            "measure": {
                "trials": [asdict(trial) for trial in trials],
                "corpus": describe(self.work.corpus),
                "device": self.seen,
            }
        }


def _read(answer: Message | None) -> Measured | None:
    record: dict[str, Any] | None = (answer or {}).get("measured")
    return None if record is None else Measured(**record)


def _largest(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Those of the specification that has the most to compute."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.spec.digest, []).append(trial)

    def cost(group: list[Trial]) -> int:
        prepared = prepare(group[0].spec)
        return len(group) * prepared.train.steps * prepared.parameters()

    return max(groups.values(), key=cost)


class SharedQueue(PackQueue):
    """A queue whose packs are shared out among the workers of a pool.

    It may measure, and so needs a free worker when it is asked for a pack.
    """

    def __init__(self, work: Work, layout: Layout, pool: Pool, size: PackSize) -> None:
        """`size` is that of a pack, "auto" to measure it."""
        super().__init__(work, layout.device, size)
        self.layout, self.pool = layout, pool

    def ready(self) -> bool:
        """Whether a pack can be given out without asking for more trials."""
        return bool(self._ready)

    def _size(self, trials: tuple[Trial, ...]) -> int:
        if self.size != "auto":
            return self.size
        workers = len(self.pool.seats)
        share = -(-len(trials) // workers)
        if share == 1:
            return 1
        measured = self.layout.measured(self.pool, trials[:share])
        if measured is None:
            return 1  # what cannot be trained fails by itself, trial by trial, with its reason
        rounds = -(-len(trials) // (min(measured.size, share) * workers))
        return -(-len(trials) // (rounds * workers))
