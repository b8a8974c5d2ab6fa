"""What launchers share: packs out of what is pending, and a pack's run with what may go wrong."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

import torch

from sweeper.data.corpus import Corpus
from sweeper.errors import ConfigError, SweeperError
from sweeper.launch.launcher import Work
from sweeper.search.prune import Pruner
from sweeper.training import checkpoint
from sweeper.training.pack import Pack
from sweeper.training.packing import Measured, measure, split, step_seconds
from sweeper.training.program import for_spec
from sweeper.training.train import Execution, Reporter, train
from sweeper.trial import Result, Trial

PackSize = int | Literal["auto"]

UNTRAINABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    SystemExit,
    TypeError,
    ValueError,
)
"""What a trial, or a model of a user's own, may raise; anything else has other causes."""

_MEASURED: dict[str, Measured] = {}
"""Pack sizes found by this process, by specification and device."""


def resolve_device(name: str) -> str:
    """`name`, or for "auto" the GPU when there is one; ConfigError when it cannot be had."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()  # "meta" has no values
    except (RuntimeError, AssertionError) as error:
        raise ConfigError("device", name, "auto, cpu, or a device that torch can use") from error
    return name


def estimate(
    trials: tuple[Trial, ...], corpus: Corpus, device: str, size: PackSize
) -> tuple[int, float]:
    """Pack size and seconds of a trial's step; measured once, and again for more trials."""
    pack = Pack(trials=trials, corpus=corpus)
    if size != "auto":
        part = Pack(trials=trials[:size], corpus=corpus)
        return size, step_seconds(part, device) / len(part.trials)
    key = f"{trials[0].spec.digest} {device}"
    measured = _MEASURED.get(key)
    if measured is None or not measured.serves(len(trials)):
        measured = _MEASURED[key] = measure(pack, device)
    return measured.size, measured.seconds


class PackQueue:
    """Packs of what is pending, each trial given out once.

    Packs that were begun by an earlier driver come first, as they were, so that they go on from
    their checkpoints. The others hold trials of one specification, as equal in size as they can be.
    """

    def __init__(self, work: Work, device: str, size: PackSize) -> None:
        """Nothing is asked of `work` yet."""
        self.work, self.device, self.size = work, device, size
        self._given: set[str] = set()
        self._ready: deque[tuple[Trial, ...]] | None = None

    def next(self) -> Pack | None:
        """A pack to train, or None when no more can be named for the time being."""
        if not self._ready:
            self._fill()
        if not self._ready:
            return None
        return Pack(trials=self._ready.popleft(), corpus=self.work.corpus)

    def put_back(self, packs: Iterable[tuple[Trial, ...]]) -> None:
        """Packs to be given out again, before all others."""
        if self._ready is None:
            self._ready = deque()
        self._ready.extendleft(reversed(list(packs)))

    def _fill(self) -> None:
        fresh = [t for t in self.work.pending() if t.key not in self._given]
        first, self._ready = self._ready is None, self._ready or deque()
        self._given |= {trial.key for trial in fresh}
        if first:
            for pack in checkpoint.started(self.work.folder / "checkpoints", fresh):
                self._ready.append(pack)
        begun = {trial.key for pack in self._ready for trial in pack}
        rest = [trial for trial in fresh if trial.key not in begun]
        for _, group in groupby(rest, key=lambda trial: trial.spec.digest):
            same = tuple(group)
            self._ready.extend(same[part] for part in split(same, self._size(same)))

    def _size(self, trials: tuple[Trial, ...]) -> int:
        if self.size != "auto":
            return self.size
        if len(trials) == 1:
            return 1
        try:
            size, _ = estimate(trials, self.work.corpus, self.device, "auto")
        except UNTRAINABLE:
            return 1  # what cannot be trained fails by itself, trial by trial, with its reason
        return size


def run_pack(
    pack: Pack, execution: Execution, reporter: Reporter, pruner: Pruner | None
) -> tuple[list[Result], list[tuple[Trial, ...]]]:
    """Train `pack`; its results, or the parts that should be tried in its place.

    What is too large for the device is halved; a single trial that is too large is trained once
    more with its activations recomputed. Any other error halves the pack too, until it fails the
    trial alone that causes it. SweeperError goes through: it is the configuration's fault.
    """
    try:
        return train(pack, execution, reporter, pruner), []
    except SweeperError:
        raise
    except torch.OutOfMemoryError as error:
        problem: BaseException = error
    except UNTRAINABLE as error:
        problem = error
    if isinstance(problem, torch.OutOfMemoryError):
        # Only here: the error being handled keeps the pack's tensors alive.
        problem.__traceback__ = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if len(pack.trials) > 1:
        return [], halves(pack.trials)
    if isinstance(problem, torch.OutOfMemoryError):
        program = for_spec(pack.trials[0].spec, execution.device)
        if program.recompute():
            reporter.tell("a trial does not fit the device: its activations are recomputed")
            return run_pack(pack, execution, reporter, pruner)
    return [failed(pack.trials[0], f"{type(problem).__name__}: {problem}")], []


def halves(trials: tuple[Trial, ...]) -> list[tuple[Trial, ...]]:
    """The trials of a pack as two packs, as equal in size as they can be."""
    return [trials[part] for part in split(trials, -(-len(trials) // 2))]


def failed(trial: Trial, reason: str) -> Result:
    """The result of a trial that could not be trained, with the reason."""
    return Result(
        trial=trial,
        status="failed",
        objective=math.nan,
        heldout=math.nan,
        finished_at=time.time(),
        error=reason[:2000],
    )


def fail_all(trials: Sequence[Trial], reason: str) -> list[Result]:
    """`failed` for each of `trials`."""
    return [failed(trial, reason) for trial in trials]
