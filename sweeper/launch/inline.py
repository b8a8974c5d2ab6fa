"""Run jobs in this process, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sweeper.errors import BrokenDeviceError, SweeperError
from sweeper.launch.executor import Context, Event, Executor, Finished, Left, Machine
from sweeper.launch.job import UNCONTROLLED, Control, Job, Leave, Task
from sweeper.trial import Trial

LOOK_EVERY = 1.0
"""Seconds between two looks at whether the user has cancelled the sweep."""


@dataclass(frozen=True, kw_only=True)
class Inline:
    """The simplest launcher: no other process, one device."""

    retries: ClassVar[int] = 0
    pins_gpus: ClassVar[bool] = False
    device: ClassVar[None] = None
    ahead: ClassVar[None] = None

    def at_once(self, gpus: Sequence[str]) -> int:
        """1: jobs run one after the other."""
        return 1

    def sharing(self, machine: Machine) -> str:
        """Nothing is shared."""
        return ""

    def executor(self, context: Context) -> Executor:
        """One that runs a job when it is polled."""
        return InlineExecutor(context)


@dataclass
class InlineExecutor(Executor):
    """Runs a job from its objects: no file is written, and its task need not be plain JSON."""

    context: Context
    layouts: range = range(1, 2)
    recovered: dict[str, tuple[Trial, ...]] = field(default_factory=dict)
    job: Job | None = None
    _looked: float = 0.0

    def room(self, *, ahead: bool = False) -> bool:
        """Whether no job is at hand."""
        return self.job is None

    def submit(self, job: Job) -> None:
        """Keep the job until it is polled."""
        self.job = job

    def poll(self, *, wait: bool = True) -> list[Event]:
        """Run the job at hand to its end."""
        if self.job is None:
            return []
        job, notices = self.job, list[str]()

        def should_leave() -> bool:  # asked at every step, and the answer is a file
            now = time.monotonic()
            if now - self._looked < LOOK_EVERY:
                return False
            self._looked = now
            return self.context.cancelled()

        control = Control(
            progress=lambda fraction: self.context.progress(job.id, fraction),
            notify=notices.append,
            should_leave=should_leave,
        )
        try:
            outcome = _run(job.task, control)
        except Leave:
            return [Left(job=job.id)]
        finally:
            self.job = None
        return [Finished(job=job.id, outcome=replace(outcome, notices=tuple(notices)))]

    def call(self, tasks: Sequence[Task], layout: int) -> list[Any]:
        """One after the other, here."""
        return [_run(task, UNCONTROLLED) for task in tasks]


def _run(task: Task, control: Control) -> Any:
    try:
        return task.run(control)
    except BrokenDeviceError as error:
        raise SweeperError(
            f"{error}; what is finished is recorded. Run the same command to go on; "
            "launcher=local outlives such errors, and sets the trial aside that causes them"
        ) from error
