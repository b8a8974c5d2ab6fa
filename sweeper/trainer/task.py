"""The task of a job that runs one command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.control import Control
from sweeper.errors import SweeperError
from sweeper.launch.job import Outcome
from sweeper.search.prune import Pruner
from sweeper.trainer.code import changed_files
from sweeper.trainer.command_line import CommandLine
from sweeper.trainer.supervise import Running, Supervisor
from sweeper.trial import Trial


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Run a trial's command. `code` are the digests of the files that it was submitted with."""

    trial: Trial
    running: Running
    code: Mapping[str, str]
    pruner: Pruner | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The one."""
        return (self.trial,)

    def run(self, control: Control) -> Outcome:
        """See `Supervisor`; SweeperError, and nothing is run, once the code is another."""
        if changed := changed_files(self.code, self.running.cwd):
            raise SweeperError(
                f"{', '.join(changed)} changed since the search began: run the same command again "
                "to train with the code as it is now"
            )
        return Supervisor(self.trial, self.running, control, self.pruner).run()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "running": asdict(self.running),
            "code": dict(self.code),
            "pruner": None if self.pruner is None else self.pruner.to_json(),
        }

    @classmethod
    def from_json(cls, trials: tuple[Trial, ...], record: Mapping[str, Any]) -> RunCommand:
        """Inverse of `to_json`; one of `files.RECORD_ERRORS` for anything else."""
        running, pruner, (trial,) = dict(record["running"]), record["pruner"], trials
        line = dict(running["line"])
        for key in ("command", "resume", "torchrun"):
            line[key] = tuple(line[key])
        return cls(
            trial=trial,
            running=Running(
                **running | {"line": CommandLine(**line), "env": tuple(running["env"])}
            ),
            code=record["code"],
            pruner=None if pruner is None else Pruner.from_json(pruner),
        )

    def modules(self) -> list[str]:
        """None that this process imports."""
        return []
