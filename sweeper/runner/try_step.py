"""The task of training one step before anything is written, where jobs will train."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sweeper.catalog import plugin_target
from sweeper.control import Control
from sweeper.data.corpus import Corpus
from sweeper.errors import ConfigError, SweeperError, user_frames
from sweeper.launch.executor import Context, Launcher, Machine
from sweeper.plugin import build_plugin
from sweeper.runner.tasks import UNTRAINABLE, describe, modules_of
from sweeper.training.pack import Pack, PackRun
from sweeper.training.precision import quiet_attention
from sweeper.trial import Trial


@dataclass(frozen=True, kw_only=True)
class TryStep:
    """A step of `trial` on two examples."""

    trial: Trial
    corpus: Corpus
    device: str

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The one."""
        return (self.trial,)

    def check(self) -> None:
        """Train it in this process; ConfigError, with the place, where that fails."""
        try:
            loss = self._loss()
        except SweeperError:
            raise
        except UNTRAINABLE as error:
            lines = [f"{type(error).__name__}: {error}", *user_frames(error)]
            raise self._refused("one step failed", "\n  ".join(lines)) from error
        if not math.isfinite(loss):
            allowed = f"a model whose first loss is a number, and on two examples it is {loss}"
            raise ConfigError("model._target_", self._target, allowed)

    def run_in_worker(self, launcher: Launcher, machine: Machine) -> None:
        """Train it in a worker process, which has the GPU; ConfigError as in `check`."""
        with TemporaryDirectory() as folder:
            executor = launcher.executor(Context(folder=Path(folder), machine=machine))
            try:
                [answer] = executor.call([self], executor.layouts[0])
            except TypeError:  # data that cannot leave this process
                self.check()
                return
            finally:
                executor.close()
        if answer is None:
            raise self._refused("one step ended its process", "run it alone to see why")
        if answer:
            raise ConfigError(answer["key"], answer["value"], answer["allowed"])

    def run(self, control: Control) -> dict[str, Any]:
        """The parts of the ConfigError of `check`; nothing where all is well."""
        try:
            self.check()
        except ConfigError as error:
            return {"key": error.key, "value": str(error.value), "allowed": error.allowed}
        return {}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; TypeError for a corpus that is no dataclass."""
        # A worker that is pinned to a GPU sees no other.
        device = "cuda" if self.device.startswith("cuda") else self.device
        return {"corpus": describe(self.corpus), "device": device}

    @classmethod
    def from_json(cls, trials: tuple[Trial, ...], record: Mapping[str, Any]) -> TryStep:
        """Inverse of `to_json`."""
        corpus = build_plugin(record["corpus"])
        return cls(trial=trials[0], corpus=corpus, device=record["device"])

    def modules(self) -> list[str]:
        """Modules of the user's own that are needed."""
        return modules_of(self._pack)

    @property
    def _pack(self) -> Pack:
        train = self.trial.spec.train
        small = replace(train, steps=1, batch_size=min(2, train.batch_size), accumulate=1)
        one = replace(self.trial, spec=replace(self.trial.spec, train=small))
        return Pack(trials=(one,), corpus=self.corpus)

    @property
    def _target(self) -> str:
        return plugin_target("model", self.trial.spec.model.name)

    def _loss(self) -> float:
        run = PackRun(self._pack, self.device)
        try:
            with quiet_attention():
                return float(run.step()[0])
        finally:
            run.program.release()

    def _refused(self, what: str, reason: str) -> ConfigError:
        allowed = f"a model that trains on these data, and {what}:\n  {reason}"
        return ConfigError("model._target_", self._target, allowed)
