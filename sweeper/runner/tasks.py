"""The engine's tasks: to train a pack, and to find out how large a pack should be."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from sweeper.control import Control
from sweeper.data.corpus import Corpus
from sweeper.errors import SweeperError, user_frames
from sweeper.launch.job import JobFailure, Outcome
from sweeper.measure import MEASUREMENTS
from sweeper.plugin import build_plugin
from sweeper.search.prune import Pruner
from sweeper.training.device_errors import (
    forget_frames,
    free_unused,
    is_out_of_memory,
    raise_if_broken,
)
from sweeper.training.pack import Pack, UpdateBrokenError
from sweeper.training.packing import measure_pack_size
from sweeper.training.prepare import prepare
from sweeper.training.program import program_for
from sweeper.training.train import Execution, device_name, train
from sweeper.trial import Result, Trial, encode

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


@dataclass(frozen=True, kw_only=True)
class TrainPack:
    """The task of a job: a pack, how to run it, and what may stop its trials early."""

    pack: Pack
    execution: Execution
    pruner: Pruner | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those of the pack."""
        return self.pack.trials

    def run(self, control: Control) -> Outcome:
        """Train, or measure, the pack; `Leave` when it was told to leave.

        Whatever a model raises is the outcome's failure. What is too large for the device is one
        too, but for a single trial, which is trained once more with its activations recomputed.
        SweeperError goes through: it is the configuration's fault. BrokenDeviceError when nothing
        more can be trained in this process.
        """
        device = torch.device(self.execution.device)
        try:
            return Outcome(results=tuple(self._results(control)))
        except SweeperError:
            raise
        except (MemoryError, *UNTRAINABLE) as error:
            problem: BaseException = error
        if is_out_of_memory(problem):
            # Only here: the error being handled keeps the pack's tensors alive.
            forget_frames(problem)
            free_unused(device)
            program = program_for(self.pack.trials[0].spec, self.execution.device)
            program.forget_sizes(len(self.pack.trials))
            if (count := len(self.pack.trials)) > 1:
                control.notify(f"{count} trials do not fit the device together: they are halved")
            elif program.recompute():
                control.notify("a trial does not fit the device: its activations are recomputed")
                return self.run(control)
        raise_if_broken(device, problem)
        if isinstance(problem, UpdateBrokenError):
            control.notify(f"the compiled update failed ({problem}): begun anew without it")
            return self.run(control)
        reason = f"{type(problem).__name__}: {problem}"
        details = "\n".join(user_frames(problem))
        return Outcome(failure=JobFailure(reason=reason, details=details, retry=False))

    def _results(self, control: Control) -> list[Result]:
        trial = self.pack.trials[0]
        if not trial.measurement:
            return train(self.pack, self.execution, control, self.pruner)
        start = time.perf_counter()
        measure = MEASUREMENTS[trial.measurement]
        value = measure(trial, self.pack.corpus, self.execution.device, control)
        return [
            Result(
                trial=trial,
                status="complete",
                objective=math.nan,
                seconds=time.perf_counter() - start,
                steps=prepare(trial.spec).train.steps,
                finished_at=time.time(),
                device=device_name(torch.device(self.execution.device)),
                measurements=value,
            )
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; TypeError for a corpus that is no dataclass."""
        return {
            "corpus": describe(self.pack.corpus),
            "execution": _plain(self.execution),
            "pruner": None if self.pruner is None else self.pruner.to_json(),
        }

    @classmethod
    def from_json(cls, trials: tuple[Trial, ...], record: Mapping[str, Any]) -> TrainPack:
        """Inverse of `to_json`; one of `files.RECORD_ERRORS`, or ConfigError, for anything else."""
        execution = dict(record["execution"])
        if execution["checkpoints"] is not None:
            execution["checkpoints"] = Path(execution["checkpoints"])
        pruner = record["pruner"]
        return cls(
            pack=Pack(trials=trials, corpus=build_plugin(record["corpus"])),
            execution=Execution(**execution),
            pruner=None if pruner is None else Pruner.from_json(pruner),
        )

    def modules(self) -> list[str]:
        """Modules of the user's own that the specification and the corpus name."""
        return modules_of(self.pack)


@dataclass(frozen=True, kw_only=True)
class MeasurePack:
    """The task of finding the size of the best pack of these trials on a device."""

    pack: Pack
    device: str

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those of the pack."""
        return self.pack.trials

    def run(self, control: Control) -> dict[str, Any] | None:
        """The fields of `MeasuredSize`; None when the trials cannot be trained."""
        try:
            return asdict(measure_pack_size(self.pack, self.device, control))
        except SweeperError:
            return None
        except UNTRAINABLE as error:
            raise_if_broken(torch.device(self.device), error)
            return None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; TypeError for a corpus that is no dataclass."""
        return {"corpus": describe(self.pack.corpus), "device": self.device}

    @classmethod
    def from_json(cls, trials: tuple[Trial, ...], record: Mapping[str, Any]) -> MeasurePack:
        """Inverse of `to_json`."""
        return cls(
            pack=Pack(trials=trials, corpus=build_plugin(record["corpus"])), device=record["device"]
        )

    def modules(self) -> list[str]:
        """As for training."""
        return modules_of(self.pack)


def modules_of(pack: Pack) -> list[str]:
    """Modules of the user's own that a pack's specification and corpus name."""
    dotted = (plugin.name.rpartition(".")[0] for plugin in pack.trials[0].spec.plugins)
    modules = {*filter(None, dotted), type(pack.corpus).__module__}
    return sorted(name for name in modules if name.split(".")[0] != "sweeper")


def describe(corpus: Corpus) -> dict[str, Any]:
    """A corpus as a config that `plugin.build_plugin` makes it from again."""
    if not is_dataclass(corpus):
        raise TypeError(f"{type(corpus).__name__} is no dataclass: it cannot go to other processes")
    kind = type(corpus)
    return {"_target_": f"{kind.__module__}.{kind.__qualname__}", **_plain(corpus)}


def _plain(record: Any) -> dict[str, Any]:
    """The fields of a dataclass, paths as text."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: str(value) if isinstance(value, Path) else encode(value)
        for name, value in values.items()
    }
