"""A runner whose trials only count: what becomes of jobs is shown without torch in any process.

A trial of so many steps adds a number at each. Two trials differ in what comes of them, and one
whose steps were lost, or done twice, from both.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.files import read_json, try_json, write_json
from sweeper.launch.executor import Batch, Executor, Machine
from sweeper.launch.inline import Inline
from sweeper.launch.job import Control, Job, JobOutcome, Leave
from sweeper.records import NAMES_CLASS
from sweeper.search.prune import Pruner
from sweeper.trial import Result, Trial, digest
from tests.launch.trial_sweep import TrialSweep, without_times
from tests.launch.trouble import Trouble
from tests.specs import spec_of


def counted(seed: int = 0, steps: int = 8, eta: float = 0.0) -> Trial:
    return Trial(spec=spec_of({"train": {"steps": steps}}), log2_hps={"eta": eta}, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Count:
    """The task: every trial takes a step, then all the next; saved in `saves` when it leaves."""

    trials: tuple[Trial, ...]
    trouble: Trouble = field(metadata=NAMES_CLASS)
    saves: Path

    @property
    def path(self) -> Path:
        return self.saves / f"{digest([trial.key for trial in self.trials])[:32]}.json"

    def run(self, control: Control) -> JobOutcome:
        return JobOutcome(results=tuple(map(_result, self.trials, self._sums(control))))

    def _sums(self, control: Control) -> list[float]:
        first, sums = self._saved()
        steps = self.trials[0].spec.train.steps
        for step in range(first, steps):
            for index, trial in enumerate(self.trials):
                self.trouble.meet(trial.seed, step)
                sums[index] += math.sin(1 + step + trial.seed + trial.log2_hps["eta"])
            control.progress((step + 1) / steps)
            if control.should_leave():
                self.saves.mkdir(exist_ok=True)
                keys = [trial.key for trial in self.trials]
                write_json(self.path, {"keys": keys, "step": step + 1, "sums": sums})
                raise Leave
        return sums

    def _saved(self) -> tuple[int, list[float]]:
        """The step to go on from, and the sums before it."""
        record = try_json(self.path) or {"step": 0, "sums": [0.0] * len(self.trials)}
        return record["step"], record["sums"]

    def modules(self) -> list[str]:
        return [type(self.trouble).__module__]


@dataclass(frozen=True, kw_only=True)
class Ask(Count):
    """The task that counts for an answer: the process that did."""

    def run(self, control: Control) -> dict[str, int]:  # type: ignore[override]
        self._sums(control)
        return {"process": os.getpid()}


@dataclass(frozen=True, kw_only=True)
class Compile(Count):
    def run(self, control: Control) -> JobOutcome:
        control.saved(True)
        (self.saves / "compiles").touch()
        time.sleep(60)
        return JobOutcome()


def _result(trial: Trial, value: float) -> Result:
    steps = trial.spec.train.steps
    return Result(trial=trial, status="complete", objective=value, heldout=-value, steps=steps)


@dataclass(frozen=True, kw_only=True)
class CountRunner:
    trouble: Trouble = field(metadata=NAMES_CLASS)
    saves: Path
    batched_trials: int

    def machine(self) -> Machine:
        return Machine()

    def batches(self, trials: Sequence[Trial], executor: Executor, *_: Any) -> list[Batch]:
        if executor.layouts:
            executor.use(executor.layouts[-1])
        wanted = {trial.key: trial for trial in trials}
        saved = [_keys(path) for path in sorted(self.saves.glob("*.json"))]
        begun = [tuple(map(wanted.pop, keys)) for keys in saved if wanted.keys() >= {*keys}]
        fresh = list(wanted.values())
        return begun + [
            tuple(fresh[i : i + self.batched_trials])
            for i in range(0, len(fresh), self.batched_trials)
        ]

    def job(self, batch: Batch, pruner: Pruner | None) -> Job:
        return Job(task=Count(trials=batch, trouble=self.trouble, saves=self.saves))

    def forget(self, batch: Batch) -> None:
        Count(trials=batch, trouble=self.trouble, saves=self.saves).path.unlink(missing_ok=True)

    def tidy(self, is_finished: Callable[[str], bool], *, idle: bool) -> None:
        for path in self.saves.glob("*.json"):
            if all(map(is_finished, _keys(path))):
                path.unlink()


def _keys(path: Path) -> list[str]:
    return list(map(str, read_json(path)["keys"]))


@dataclass(kw_only=True)
class CountSweep(TrialSweep):
    corpus: None = None
    trouble: Trouble = field(default_factory=Trouble)

    def runner(self, launcher: Any, **options: Any) -> CountRunner:
        saves = self.folder.absolute() / "checkpoints"
        return CountRunner(
            trouble=self.trouble, saves=saves, batched_trials=options.get("batched_trials", 1)
        )


def expected(trials: Sequence[Trial], folder: Path) -> dict[str, Result]:
    inline = folder / "inline"
    inline.mkdir()
    return without_times(CountSweep(trials=trials, folder=inline).run(Inline()))
