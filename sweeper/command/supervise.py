"""One trial of a command, from its start to what came of it.

```
trials/<key>/trial.json     hyperparameters in plain values, sizes, seed
             plan.json      the plan at this size, where sweeper applies the parameterization
             metrics.jsonl  what the script reports (SWEEPER_REPORT): {"step": 1, "loss": 2.3}
             plan_check.jsonl  what its steps show beside the plan (`plan/in_training.py`)
             log.txt        all that it printed
             result.json    how it ended
```

All else in the folder is the script's own.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.command.in_script import FILE, STEPS
from sweeper.command.metrics import PRINTED, REPORTED, metric_of
from sweeper.command.metrics.pattern import Log
from sweeper.command.metrics.rows import Rows
from sweeper.command.process import MARK, Group, end_marked, environment
from sweeper.command.reading import (
    CHUNK,
    LAST_LINES,
    Lines,
    MetricSource,
    Reading,
    as_number,
    last_text,
)
from sweeper.command.series import Series
from sweeper.errors import SweeperError
from sweeper.files import private_folder, read_json, try_json, write_json
from sweeper.launch.job import Control, JobFailure, JobOutcome, Leave
from sweeper.plan.in_training import DISAGREES, SEEN, SWITCH, TRIAL, disagreement, low_peak
from sweeper.search.prune import Pruner
from sweeper.study.folder import PLAN
from sweeper.trial import Result, Trial, curve, judged

if TYPE_CHECKING:
    from sweeper.command.command_runner import Command

TICK = 0.2
"""Seconds between two looks at a running command; its end is seen at once."""
FILES = ("trial.json", PLAN, "metrics.jsonl", "log.txt", "result.json", SEEN)
"""Those of a trial's folder that are not the script's own."""
# 128 + its number is how a shell reports a signal, minus its number how Popen does.
PREEMPTED = (75, 130, 143, -2, -15)
"""Exit codes that ask to be run again in the same folder: EX_TEMPFAIL, SIGINT and SIGTERM."""
MAX_STANDSTILLS = 3
"""A command that was preempted so often at one and the same step is not run again."""
LOST = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""What a command causes that removes its folder, or puts something else in its place."""
DEVICE = "command"
"""In the place of a device's name: the command knows."""


def make_folder(folder: Path) -> None:
    """A trial's own folder: what an earlier run put in its place, or in that of a file, goes."""
    if not folder.is_dir():
        folder.unlink(missing_ok=True)
    for path in (folder / name for name in FILES):
        # A link is never followed: what it leads to is not the trial's.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or not path.is_file():
            path.unlink(missing_ok=True)
    private_folder(folder)


class Supervisor:
    """Sees one trial through: starts its command, reads its losses, ends it where it must end."""

    def __init__(
        self, trial: Trial, command: Command, folder: Path, control: Control, pruner: Pruner | None
    ) -> None:
        self.trial, self.command, self.folder = trial, command, folder
        self.control, self.pruner, self.train = control, pruner, trial.spec.train
        self.log, self.watched = self.folder / "log.txt", self.folder / "watched.json"
        self.losses, self.heldout = Series(), Series()
        self.sources: list[tuple[MetricSource, Series]] = []
        self.resumes = 0
        self._rungs_passed: set[int] = set()
        self._program, self._is_again = "", False

    def run(self) -> JobOutcome:
        """To the end; `Leave` when told to leave, with every process ended."""
        try:
            return self._run()
        except LOST as error:
            reason = f"its folder or a file there is gone or is another's ({error.strerror}): the "
            reason += "command must leave log.txt and result.json in {dir} as they are"
            return JobOutcome(
                failure=JobFailure(reason=reason, details=str(error.filename), retry=False)
            )

    def _run(self) -> JobOutcome:
        start = time.monotonic()
        make_folder(self.folder)
        if self.log.exists():  # what a supervisor that was killed could not end
            end_marked(str(self.folder))
        standstills, furthest, before = 0, -1, -1
        while True:
            status, code = self._attempt()
            if status != "preempted":
                return self._outcome(status, code, time.monotonic() - start)
            if self.control.should_leave():  # the signal was for all processes of the job
                raise Leave
            reached = self.losses.last_step()
            # A preempted run goes on from its checkpoint as often as it likes, as long as it comes
            # further: from where it was. One that begins anew may come further by chance alone.
            anew = not self.resumes and self.losses.first_step() <= before / 2
            standstills = 0 if reached > furthest and not anew else standstills + 1
            furthest, before = max(furthest, reached), reached
            if standstills == MAX_STANDSTILLS or (anew and standstills == MAX_STANDSTILLS - 1):
                starts = MAX_STANDSTILLS if anew else standstills
                reason = f"it was preempted {starts} times without coming further"
                reason += ": runner.resume_if names what it can go on from" * anew
                return self._failure(reason, code)
            self.control.notify(f"a command was preempted (exit code {code}) and is run again")

    def _attempt(self) -> tuple[str, int]:
        """Run the command once: how it ended, such as complete or preempted; its code."""
        pattern, report = self.command.resume_if, self.folder / "metrics.jsonl"
        resumed = pattern is not None and any(self.folder.glob(pattern))
        # A resumed run goes on with what is written: it is read anew from the beginning.
        ended = self.folder / "result.json"
        before = try_json(ended).get("resumes")
        self.resumes = (before if isinstance(before, int) else 0) + 1 if resumed else 0
        if resumed:  # on record, should this process be killed
            write_json(ended, {"status": "running", "resumes": self.resumes})
        else:
            ended.unlink(missing_ok=True)
            for path in (report, self.log, self.folder / SEEN):
                path.unlink(missing_ok=True)
        self.losses, self.heldout = Series(), Series()
        self.sources = []
        for spec, key, series in (
            (self.command.heldout, "heldout", self.heldout),
            (self.command.metric, "loss", self.losses),
        ):
            source: MetricSource = Rows(Lines(report), key)
            if spec:
                source = metric_of(spec).open(self.folder, self.log, fresh=not resumed)
            self.sources.append((source, series))
        argv = self.command.argv(self.trial, self.folder, resumed=resumed, write=True)
        variables = {
            MARK: str(self.folder),
            TRIAL: str(self.folder / "trial.json"),
            "SWEEPER_PLAN": str(self.folder / PLAN),
            "SWEEPER_REPORT": str(report),
            # A loss in a buffer would be seen late, and by a kill never: nothing could be pruned by
            # it.
            "PYTHONUNBUFFERED": "1",
        }
        if self._is_again and not resumed:  # it may go on from a checkpoint by itself
            variables[SWITCH] = "0"
        self._is_again = True
        if self.trial.measurement:
            variables |= {FILE: str(self.watched), STEPS: str(self.train.steps)}
        env = environment(self.command.env, variables)
        self._program = shutil.which(argv[0], path=env.get("PATH")) or ""
        try:
            group = Group(argv, self.command.folder, env, self.log)
        except OSError as error:
            raise SweeperError(
                f"the command cannot be started: {argv[0]}: {error.strerror}"
            ) from error
        try:
            return self._watch(group)
        finally:
            group.clean()

    def _watch(self, group: Group) -> tuple[str, int]:
        grace, hang = self.command.grace, self.command.hang
        quiet_since, size_before, begun = time.monotonic(), -1, False
        while True:
            code = group.wait(TICK)
            if self._printed() > (self.command.output or math.inf) * 1e6:
                return "flooded", group.end(grace) if code is None else code
            for source, series in self.sources:
                series.add(source.read(ended=code is not None))
            if (last := self.losses.last_step()) >= 0:
                if not begun:  # where it began: a script may go on from a checkpoint by itself
                    first = last if self.resumes else self.losses.first_step()
                    self.control.progress(min(1.0, first / self.train.steps))
                begun = True
                self.control.progress(min(1.0, (last + 1) / self.train.steps))
            if disagreement(self.folder, ended=False):
                return "failed", group.end(grace) if code is None else code
            if not self.losses.finite():
                return "diverged", group.end(grace) if code is None else code
            # After the losses are read: one that is not finite says more than the exit code that
            # follows it.
            if code is not None:
                failed = "preempted" if code in PREEMPTED else "failed"
                return ("complete" if code == 0 else failed), code
            if self.control.should_leave():
                group.end(grace)
                raise Leave
            if self._should_prune():
                return "pruned", group.end(grace)
            # A new line of the log, or a new loss wherever it is written, is a sign of life.
            size = self._printed() + len(self.losses)
            if size != size_before:
                size_before, quiet_since = size, time.monotonic()
            if hang is not None and time.monotonic() - quiet_since > hang:
                return "hung", group.end(grace)

    def _printed(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _should_prune(self) -> bool:
        # Losses without a step: nobody knows which one is at a rung.
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

    def _outcome(self, status: str, code: int, seconds: float) -> JobOutcome:
        # A measurement has few steps, and a resumed run may have had its peak before.
        whole = status == "complete" and not (self.trial.measurement or self.resumes)
        if problem := disagreement(self.folder, ended=whole):
            outcome = self._failure(f"{DISAGREES}: {problem}", code or 1)
            assert outcome.failure is not None  # of which the log tells nothing more
            return replace(outcome, failure=replace(outcome.failure, details=""))
        if status == "hung":
            return self._failure(f"it said nothing for {self.command.hang:g} s and was ended", code)
        if status == "flooded":
            # The beginning stays, for the message; the disk gets back the rest.
            os.truncate(self.log, CHUNK)
            most = f"{self.command.output:g} MB"
            reason = f"it printed more than {most} and was ended; runner.output sets the limit"
            return self._failure(reason, code)
        if hidden := status == "complete" and self._hides_an_error():
            status = "failed"
        if seen := self._diverged(status, code):
            return self._outcome_diverged(seen, code, seconds)
        if status == "failed":
            passed_on = ", and its log in an error: a shell script around it must pass the exit "
            passed_on += "code on (set -eo pipefail, at its beginning)"
            return self._failure(f"it ended with {_end_of(code)}{passed_on * hidden}", code or 1)
        if self.trial.measurement:
            return self._measured(code, seconds)
        if not len(self.losses):
            return self._failure(f"it ended without a loss: {self._why_no_loss()}", code)
        # A run that was given other steps, or reports tokens as steps, would be judged at the wrong
        # place of its curve: it fails with the reason.
        if self.losses.exceeds(self.train.steps):
            reason = f"it reported step {self.losses.last_step()} of {self.train.steps}: does the "
            return self._failure(f"{reason}command take {{steps}}, and does it count steps?", code)
        if status == "complete" and not self.losses.reaches(self.train.steps, self.train.window()):
            last = self.losses.last_step()
            reason = f"it ended at step {last} of {self.train.steps}, as if it had done them all"
            if (returns := self.losses.returns - self.resumes) > 0:
                reason = (
                    f"the step of its losses goes back {returns} times and is {last} of "
                    f"{self.train.steps} at the end: does it count anew in each epoch? metric= "
                    "must find the step of the whole run, or no step at all"
                )
            return self._failure(reason, code)
        if status == "complete" and self.train.objective == "heldout" and not len(self.heldout):
            spec = self.command.heldout
            there = metric_of(spec).contents(self.folder) if spec else ""
            reason = "it reported no held-out loss, which is the objective"
            return self._failure(f"{reason}; {there}" if there else reason, code)
        notes = filter(None, [low_peak(self.folder)] * whole)
        return JobOutcome(results=(self._result(status, code, seconds),), notices=tuple(notes))

    def _diverged(self, status: str, code: int) -> str:
        """What shows that a run that ended by itself has diverged; empty where nothing does.

        Some trainers leave a loss out that is NaN, others raise: neither says NaN where losses are
        read.
        """
        if not len(self.losses) or self.trial.measurement or status not in ("complete", "failed"):
            return ""
        last, beyond = self.losses.last_step(), self.sources[-1][0].beyond()
        place = "its losses end" if self.losses.counted else f"its losses end at step {last}"
        reached = self.losses.reaches(self.train.steps, self.train.window())
        if beyond.went_on(reached=reached):
            to = "" if beyond.step is None else f" to step {beyond.step}"
            return f"{place}, and what it writes goes on{to} without one: {beyond.line[:200]!r}"
        if code < 0 or (status == "complete" and reached):  # a signal is the machine's word
            return ""
        if status == "complete":
            stopped = (line for line in last_text(self.log) if _STOPPED.search(line))
            if line := next(stopped, ""):
                return f"{place}, where it ended by itself: {line.strip()[:200]!r}"
            return ""
        if self.losses.grew():
            least, end = min(self.losses.losses), self.losses.losses[-1]
            return f"its losses grew, from {least:.6g} to {end:.6g}, before exit code {code}"
        raised = error_lines(last_text(self.log))
        if line := next((line for line in raised if NOT_FINITE.search(line)), ""):
            return (
                f"{place} in exit code {code}, and its error tells of one that is no number: "
                f"{line.strip()[:200]!r}"
            )
        return ""

    def _hides_an_error(self) -> bool:
        reached = self.losses.reaches(self.train.steps, self.train.window())
        # Without steps as many losses say so: of a log with one a step.
        whole = not self.losses.counted or len(self.losses) >= self.train.steps
        # Python's own exit code is not 0 after an error.
        python = os.path.basename(self._program).startswith("python")
        if python or (reached and whole):
            return False
        lines = last_text(self.log)
        killed = [at for at, line in enumerate(lines) if _KILLED.search(line)]
        last = _last_error(lines)
        begin = max((i for i, line in enumerate(lines[:last]) if _BEGIN in line), default=0)
        # What Python goes on after, as at its end.
        if last is None or _PASSED_OVER.match(lines[begin - 1]):
            last = -1
        at = max(last, *killed, -1)
        source = self.sources[-1][0]
        later = map(source.pattern.search, lines[at:]) if isinstance(source, Log) else ()
        goes_on = any(match and as_number(match["loss"]) is not None for match in later)
        return 0 <= at >= len(lines) - LAST_LINES and not goes_on

    def _outcome_diverged(self, seen: str, code: int, seconds: float) -> JobOutcome:
        step = None if self.losses.counted else self.losses.last_step() + 1
        self.losses.add([Reading(step, math.nan)])
        result = replace(self._result("diverged", code, seconds, why=seen), error=seen)
        notice = (
            "a run whose losses stop while it goes on, or that raises after they grew or were NaN, "
            f"counts as diverged:\n{seen}"
        )
        return JobOutcome(results=(result,), notices=(notice,))

    def _measured(self, code: int, seconds: float) -> JobOutcome:
        try:
            measurements = read_json(self.watched)
        except (OSError, ValueError):
            reason = "its model was not watched: the script must call sweeper.watch(model)"
            return self._failure(reason, code)
        facts = {"status": "complete", "objective": math.nan, "steps": self.train.steps}
        result = self._new_result(**facts, seconds=seconds, measurements=measurements)
        return JobOutcome(results=(result,))

    def _result(self, status: str, code: int, seconds: float, why: str = "") -> Result:
        losses = self.losses.dense(self.train.steps, whole=status == "complete")
        heldout = self.heldout.losses[-1] if len(self.heldout) else None
        judgement, objective, heldout_loss = judged(losses, heldout, status, self.train)
        facts: dict[str, Any] = {"status": judgement, "objective": objective}
        facts |= {"heldout": heldout_loss, "steps": len(losses), "seconds": seconds}
        record = {**facts, "exit_code": code, "resumes": self.resumes}
        write_json(self.folder / "result.json", record | ({"why": why} if why else {}))
        return self._new_result(**facts, curve=tuple(curve(losses)))

    def _new_result(self, **facts: Any) -> Result:
        return Result(trial=self.trial, finished_at=time.time(), device=DEVICE, **facts)

    def _why_no_loss(self) -> str:
        if metric := self.command.metric:
            there = metric_of(metric).contents(self.folder)
            if isinstance(source := self.sources[-1][0], Log):
                there = source.step_elsewhere()
            if not self.log.is_file():
                there = "log.txt is gone: the command must leave it in {dir}"
            return f"none matched metric={metric}" + (f"; {there}" if there else "")
        wanted = f"none is in SWEEPER_REPORT, where lines {REPORTED} are expected"
        there = f"and no metric= is given: {PRINTED}"
        if (self.folder / "metrics.jsonl").is_file():
            there = metric_of("jsonl:metrics.jsonl:loss").contents(self.folder)
        return f"{wanted}; {there}"

    def _failure(self, reason: str, code: int) -> JobOutcome:
        lines = [line[:300] for line in last_lines(last_text(self.log), failed=code != 0)]
        # A `python` of another environment than the one that sweeper lies in: none was activated.
        other = os.path.basename(self._program).startswith("python")
        if other and self._program != sys.executable and "ModuleNotFoundError" in " ".join(lines):
            lines.append(f"(it ran under {self._program}, and sweeper under {sys.executable})")
        details = "\n".join([*lines, f"(all of it: {self.log})"])
        record = {"status": "failed", "error": reason, "exit_code": code, "resumes": self.resumes}
        write_json(self.folder / "result.json", record)
        return JobOutcome(failure=JobFailure(reason=reason, details=details, retry=False))


# The lines of a log that tell why a command failed. Under torchrun they are not the last ones: each
# rank prints its traceback, lines of several ranks mix, and some forty lines of torchrun's follow.


_KILLED = re.compile(r": line \d+: +\d+ (Killed|Segmentation fault|Aborted|Bus error)\b")
"""What a shell says of a program that a signal ended."""
ERROR_LINES = 3
"""Of the error, where a launcher's own words follow it."""
_RANK = re.compile(r"\[\w+\]: ?")
_BEGIN = "Traceback (most recent call last):"
_PASSED_OVER = re.compile(r"Exception ignored |--- Logging error|Exception in thread ")
"""What stands before a traceback of an error that ends nothing."""
_UNTRACED = re.compile(r"(Syntax|Indentation|Tab)Error: ")
NOT_FINITE = re.compile(
    r"(?<![a-z0-9])(nan|inf|infinity|is_?nan|is_?inf|is_?finite|non-?finite|not finite|diverged?|"
    r"diverges|diverging|divergence|exploded|exploding)(?![a-z0-9])|OverflowError|"
    r"loss scale (?:reached|already at minimum)|invalid loss",
    re.IGNORECASE,
)
"""What an error says of a loss that is no number; in the source line of an assertion, too."""
_STOPPED = re.compile(
    rf"(?=.*(?:{NOT_FINITE.pattern}))(?=.*(?:loss|grad))(?=.*(?:stop|terminat|abort|exit|end))",
    re.IGNORECASE,
)
"""What a script says that ends early, and without an error, for a loss that is no number."""
_OF_LAUNCHERS = re.compile(r"torch\.distributed\.elastic\.\S*Error\b")


def _end_of(code: int) -> str:
    number = -code if code < 0 else code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else ""
    name += ", as where a machine is short of memory" * (number == signal.SIGKILL)
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return f"{how} ({name})" if name else how


def last_lines(lines: Sequence[str], *, failed: bool) -> list[str]:
    """The last lines, and before them the last error of Python's if they lack that of a failure.

    What a launcher such as torchrun says of the end of its processes is no error of theirs.
    """
    tail = list(lines[-LAST_LINES:])
    at = _last_error(lines) if failed else None
    if at is None or at >= len(lines) - LAST_LINES:
        return tail
    return [*lines[at : at + ERROR_LINES], "...", *tail[ERROR_LINES + 1 :]]


def error_lines(lines: Sequence[str]) -> list[str]:
    """The last error of Python's with the frame that raised it, else the last lines."""
    at = _last_error(lines)
    if at is None:
        return list(lines[-ERROR_LINES:])
    return [*lines[at : at + ERROR_LINES], *lines[max(0, at - ERROR_LINES) : at]]


def _last_error(lines: Sequence[str]) -> int | None:
    """The place of the line that ends the last traceback; those of several ranks may mix."""
    last: int | None = None
    traced: set[str] = set()
    for at, line in enumerate(lines):
        match = _RANK.match(line)
        rank = match[0].strip() if match else ""
        text = line[match.end() :] if match else line
        if text.rstrip() == _BEGIN:
            traced.add(rank)
        # After its "Traceback" line a rank's frames are indented; the error's own line is not.
        elif _UNTRACED.match(text) or (rank in traced and text[:1].strip()):
            traced.discard(rank)
            # torchrun's own error only says that a process failed; the one before says why.
            last = last if _OF_LAUNCHERS.match(text) else at
    return last
