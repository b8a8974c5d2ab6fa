"""One trial of a command, from its start to what came of it.

```
trials/<key>/trial.json     hyperparameters in plain values, sizes, seed
             plan.json      the plan at this size, where sweeper applies the parameterization
             metrics.jsonl  what the script reports (SWEEPER_REPORT): {"step": 1, "loss": 2.3}
             log.txt        all that it printed
             result.json    how it ended
```

All else in the folder is the script's own.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.command.in_script import FILE, STEPS
from sweeper.command.metrics import PRINTED, Lines, Rows, Series, Source, held, make_source
from sweeper.command.process import MARK, Group, end_marked, environment
from sweeper.command.template import CommandLine, values_of
from sweeper.errors import SweeperError
from sweeper.files import private_folder, read_json, write_json
from sweeper.launch.code import changed_files
from sweeper.launch.job import Control, JobFailure, Leave, Outcome
from sweeper.search.prune import Pruner
from sweeper.trial import Result, Status, Trial, curve, judged

# The lines of a log that tell why a command failed.


LINES = 12
"""Of the log, that a failure quotes."""
ERROR_LINES = 3
"""Of the error, where a launcher's own words follow it."""
_RANK = re.compile(r"\[\w+\]: ?")
_BEGIN = "Traceback (most recent call last):"
_UNTRACED = re.compile(r"(Syntax|Indentation|Tab)Error: ")
_OF_LAUNCHERS = re.compile(r"torch\.distributed\.elastic\.\S*Error\b")


def last_lines(lines: Sequence[str], *, failed: bool) -> list[str]:
    """The last lines, and before them the last error of Python's if they lack that of a failure.

    What a launcher such as torchrun says of the end of its processes is no error of theirs.
    """
    tail = list(lines[-LINES:])
    at = _last_error(lines) if failed else None
    if at is None or at >= len(lines) - LINES:
        return tail
    return [*lines[at : at + ERROR_LINES], "...", *tail[ERROR_LINES + 1 :]]


def _last_error(lines: Sequence[str]) -> int | None:
    """The place of the line that ends the last traceback; those of several ranks may mix."""
    found: int | None = None
    traced: set[str] = set()
    for at, line in enumerate(lines):
        match = _RANK.match(line)
        rank = match[0].strip() if match else ""
        text = line[match.end() :] if match else line
        if text.rstrip() == _BEGIN:
            traced.add(rank)
        elif _UNTRACED.match(text) or (rank in traced and text[:1].strip()):
            traced.discard(rank)
            found = found if _OF_LAUNCHERS.match(text) else at
    return found


TICK = 0.2
"""Seconds between two looks at a running command; its end is seen at once."""
PREEMPTED = (75, 130, 143, -2, -15)
"""Exit codes that ask to be run again in the same folder: EX_TEMPFAIL, SIGINT and SIGTERM."""
MAX_STANDSTILLS = 3
"""A command that was preempted so often at one and the same step is not run again."""
DEVICE = "command"
"""In the place of a device's name: the command knows."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a trial is run and read, as plain JSON; see `runner.Command` for the words."""

    line: CommandLine
    metric: str | None
    heldout: str | None
    env: tuple[str, ...]
    cwd: str
    folder: str
    resume_if: str | None
    hang: float | None
    grace: float
    resources: Mapping[str, int] = field(default_factory=dict)


class Supervisor:
    """Sees one trial through: starts its command, reads its losses, ends it where it must end."""

    def __init__(
        self, trial: Trial, running: Running, control: Control, pruner: Pruner | None
    ) -> None:
        """Nothing is started yet."""
        self.trial, self.running, self.control, self.pruner = trial, running, control, pruner
        self.train = trial.spec.train
        self.folder = Path(running.folder)
        self.log, self.watched = self.folder / "log.txt", self.folder / "watched.json"
        self.losses, self.heldout = Series(), Series()
        self.sources: list[tuple[Source, Series]] = []
        self._quiet_since, self._seen = time.monotonic(), -1
        self._rungs_passed: set[int] = set()

    def run(self) -> Outcome:
        """To the end; `Leave` when told to leave, with every process ended."""
        start = time.monotonic()
        private_folder(self.folder)
        if self.log.exists():  # what a supervisor that was killed could not end
            end_marked(str(self.folder))
        standstills, furthest = 0, -1
        while True:
            status, code = self._attempt()
            if status != "preempted":
                return self._outcome(status, code, time.monotonic() - start)
            came = self.losses.last_step()
            standstills = 0 if came > furthest else standstills + 1
            furthest = max(furthest, came)
            if standstills == MAX_STANDSTILLS:
                reason = f"it was preempted {standstills} times without coming further"
                return self._failure(reason, code)
            self.control.notify(f"a command was preempted (exit code {code}) and is run again")

    def _attempt(self) -> tuple[str, int]:
        """Run the command once: complete, diverged, pruned, hung, failed or preempted; its code."""
        resumed = bool(self.running.resume_if) and any(
            self.folder.glob(self.running.resume_if or "")
        )
        self._open_sources(resumed)
        values = values_of(self.trial, self.folder, self.running.resources)
        values = {**values, "resume": "true" if resumed else "false"}
        argv = self.running.line.argv(values, resumed=resumed)
        own = {
            MARK: str(self.folder),
            "SWEEPER_TRIAL": str(self.folder / "trial.json"),
            "SWEEPER_PLAN": str(self.folder / "plan.json"),
            "SWEEPER_REPORT": str(self.folder / "metrics.jsonl"),
            "PYTHONUNBUFFERED": "1",
        }
        if self.trial.measurement:
            own |= {FILE: str(self.watched), STEPS: str(self.train.steps)}
        env = environment(self.running.env, own)
        try:
            group = Group(argv, Path(self.running.cwd), env, self.log)
        except OSError as error:
            raise SweeperError(
                f"the command cannot be started: {argv[0]}: {error.strerror}"
            ) from error
        try:
            return self._watch(group)
        finally:
            group.clean()

    def _open_sources(self, resumed: bool) -> None:
        """Read from the beginning what a resumed run goes on with; a fresh one starts empty."""
        report = self.folder / "metrics.jsonl"
        if not resumed:
            for path in (report, self.log):
                path.unlink(missing_ok=True)
        self.losses, self.heldout = Series(), Series()
        running = self.running
        self.sources = [(Rows(Lines(report), "heldout"), self.heldout)]
        told = running.metric or ""
        main = self._source(told, resumed) if told else Rows(Lines(report), "loss")
        self.sources.append((main, self.losses))
        if running.heldout:
            self.sources[0] = (self._source(running.heldout, resumed), self.heldout)

    def _source(self, spec: str, resumed: bool) -> Source:
        return make_source(spec, self.folder, self.log, fresh=not resumed)

    def _watch(self, group: Group) -> tuple[str, int]:
        self._quiet_since = time.monotonic()
        while True:
            code = group.wait(TICK)
            self._read(ended=code is not None)
            if not self.losses.finite():
                return "diverged", group.end(self.running.grace) if code is None else code
            if code is not None:
                return _ending(code), code
            if self.control.should_leave():
                group.end(self.running.grace)
                raise Leave
            if self._should_prune():
                return "pruned", group.end(self.running.grace)
            if self._hangs():
                return "hung", group.end(self.running.grace)

    def _read(self, *, ended: bool) -> None:
        for source, series in self.sources:
            series.add(source.read(ended=ended))
        if (last := self.losses.last_step()) >= 0:
            self.control.progress(min(1.0, (last + 1) / self.train.steps))

    def _hangs(self) -> bool:
        """Whether it has said nothing for too long: neither in its log nor by a loss."""
        size = self.log.stat().st_size if self.log.exists() else 0
        size += len(self.losses)
        if size != self._seen:
            self._seen, self._quiet_since = size, time.monotonic()
        hang = self.running.hang
        return hang is not None and time.monotonic() - self._quiet_since > hang

    def _should_prune(self) -> bool:
        """Whether the pruner stops it at a rung that it has just passed."""
        if self.pruner is None or not len(self.losses) or self.losses.counted:
            return False
        for rung in self.pruner.rungs:
            if rung in self._rungs_passed or self.losses.last_step() + 1 < rung:
                continue
            self._rungs_passed.add(rung)
            losses = self.losses.dense(self.train.steps, whole=False)
            window = losses[max(0, rung - self.train.window()) : rung]
            at_rung = {self.trial.key: float(window.mean())}
            if self.pruner.trials_to_stop(rung, at_rung, [self.trial]):
                return True
        return False

    def _outcome(self, status: str, code: int, seconds: float) -> Outcome:
        """What came of the trial."""
        if status == "hung":
            return self._failure(f"it said nothing for {self.running.hang:g} s and was ended", code)
        if status == "failed":
            return self._failure(f"it ended with {_exit_text(code)}", code)
        if self.trial.measurement:
            return self._measured(code, seconds)
        if not len(self.losses):
            return self._failure(f"it ended without a loss: {self._wanted()}", code)
        if self.losses.exceeds(self.train.steps):
            reason = f"it told step {self.losses.last_step()} of {self.train.steps}: does the "
            return self._failure(f"{reason}command take {{steps}}, and does it count steps?", code)
        if status == "complete" and not self.losses.reaches(self.train.steps, self.train.window()):
            last = self.losses.last_step()
            reason = f"it ended at step {last} of {self.train.steps}, as if it had done them all"
            return self._failure(reason, code)
        if status == "complete" and self.train.objective == "heldout" and not len(self.heldout):
            there = held(self.running.heldout or "", self.folder)
            reason = "it told no held-out loss, which is the objective"
            return self._failure(f"{reason}; {there}" if there else reason, code)
        return Outcome(results=(self._result(status, code, seconds),))

    def _measured(self, code: int, seconds: float) -> Outcome:
        """What the script's own `sweeper.watch` wrote."""
        try:
            measurements = read_json(self.watched)
        except (OSError, ValueError):
            reason = "its model was not watched: the script must call sweeper.watch(model)"
            return self._failure(reason, code)
        result = self._made("complete", math.nan, seconds, steps=self.train.steps)
        return Outcome(results=(replace(result, measurements=measurements),))

    def _result(self, status: str, code: int, seconds: float) -> Result:
        losses = self.losses.dense(self.train.steps, whole=status == "complete")
        heldout = self.heldout.losses[-1] if len(self.heldout) else None
        told, objective, heldout_loss = judged(losses, heldout, status, self.train)
        record = {"status": told, "objective": objective, "heldout": heldout_loss}
        record |= {"steps": len(losses), "seconds": seconds, "exit_code": code}
        write_json(self.folder / "result.json", record)
        result = self._made(told, objective, seconds, steps=len(losses))
        return replace(result, heldout=heldout_loss, curve=tuple(curve(losses)))

    def _made(self, status: Status, objective: float, seconds: float, *, steps: int) -> Result:
        return Result(
            trial=self.trial,
            status=status,
            objective=objective,
            seconds=seconds,
            steps=steps,
            finished_at=time.time(),
            device=DEVICE,
        )

    def _wanted(self) -> str:
        """What was looked for, and what is there instead."""
        if metric := self.running.metric:
            there = held(metric, self.folder)
            return f"none matched metric={metric}" + (f"; {there}" if there else "")
        wanted = 'none is in SWEEPER_REPORT, where lines {"step": 1, "loss": 2.3} are expected'
        there = f"and no metric= is given: {PRINTED}"
        if (self.folder / "metrics.jsonl").is_file():
            there = held("jsonl:metrics.jsonl:loss", self.folder)
        return f"{wanted}; {there}"

    def _failure(self, reason: str, code: int) -> Outcome:
        """The reason with the log's last lines; nothing is run again for it."""
        lines = last_lines(Lines(self.log).read(ended=True), failed=code != 0)
        details = "\n".join([*(line[:300] for line in lines), f"(all of it: {self.log})"])
        record = {"status": "failed", "error": reason, "exit_code": code}
        write_json(self.folder / "result.json", record)
        return Outcome(failure=JobFailure(reason=reason, details=details, retry=False))


def _ending(code: int) -> str:
    if code == 0:
        return "complete"
    return "preempted" if code in PREEMPTED else "failed"


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


# The task of a job that runs one command.


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
