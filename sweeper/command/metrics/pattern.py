"""A regular expression on what a run prints; trainers' own lines are such expressions, too."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import current_thread, main_thread
from typing import ClassVar

from sweeper.command.reading import (
    QUOTED,
    THOUSANDS,
    Beyond,
    Lines,
    Metric,
    MetricSource,
    Reading,
    as_number,
    as_step,
    last_text,
    plain,
    words_of,
    zero_or_nan,
)
from sweeper.errors import ConfigError, Keyword, SweeperError, suggest

SEARCH_SECONDS = 5.0
"""Processor time that a pattern may take: on some lines some would need years."""
LINES_AT_ONCE = 256
"""That share this time."""
_SKIPPED = re.compile(
    r"\boverflow\b.*\bskip|\bgradient overflow\b|"
    r"\bskipping (?:the )?(?:step|update|batch|iteration)",
    re.IGNORECASE,
)
"""What scalers of half precision print in place of a step whose gradient is no number."""
_STEP = re.compile(r"(?i)(?<![a-z])(?:step|iter|iteration|batch)[^\w.]{1,3}\d")
"""A line that tells a step."""
FIRST_WORDS = 3
"""Words at the beginning of two lines by which they are of one kind."""
BEGINNING = 300
"""Characters in which these words are looked for."""


@dataclass(frozen=True)
class Pattern(Metric):
    """Lines that match a pattern with the group `loss` and, if it can, `step`."""

    pattern: str

    form: ClassVar[str] = (
        "a regular expression with a group (?P<loss>...) and, if it can, (?P<step>...)"
    )

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Pattern:
        """The pattern itself."""
        from sweeper.command.metrics import forms

        try:
            compiled = re.compile(rest)
        except re.error as error:
            raise ConfigError(key, rest, f"{forms()} ({error})") from error
        if "loss" not in compiled.groupindex:
            inside = r" (here it stands between [ and ]: write \[)" * ("(?P<loss>" in rest)
            raise ConfigError(key, rest, f"{forms()}{inside}")
        if compiled.search(""):
            raise ConfigError(key, rest, r"a pattern of a line: this one matches the empty text")
        return cls(rest)

    def describe(self) -> str:
        """The pattern."""
        return f"lines of its output that match {self.pattern}"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """The log: that of an earlier run is removed before a fresh one."""
        return Log(Lines(log), re.compile(self.pattern))


@dataclass(frozen=True)
class Printed(Metric):
    """A trainer's lines, by name: subclasses say the pattern of each, `""` that of the loss."""

    name: str

    patterns: ClassVar[Mapping[str, str]]
    trainer: ClassVar[str]

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Printed:
        """The name of the lines."""
        if rest not in cls.patterns:
            others = suggest(rest, filter(None, cls.patterns))
            raise ConfigError(key, rest, f"{cls.form}; {others}")
        return cls(rest)

    def describe(self) -> str:
        """The trainer."""
        of = f" of its {self.name} loss" if self.name else ""
        return f"lines of its output as {self.trainer} prints them{of}"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """The log: that of an earlier run is removed before a fresh one."""
        return Log(Lines(log), re.compile(self.patterns[self.name]))


@dataclass
class Log(MetricSource):
    """Matches of a pattern in the command's own output."""

    lines: Lines
    pattern: re.Pattern[str]
    _beyond: Beyond = field(default_factory=Beyond)
    _last: Reading | None = None
    _first_words: list[str] = field(default_factory=list)
    _step: re.Pattern[str] | None = None

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """A reading for each line that matches; SweeperError for one that takes too long."""
        lines = self.lines.read(ended=ended)
        while some := list(islice(lines, LINES_AT_ONCE)):
            readings = []
            with self._limited() as begin:
                for line in some:
                    begin(line)
                    if (reading := self._reading(line)) is not None:
                        readings.append(reading)
            yield from readings

    def beyond(self) -> Beyond:
        """Lines that begin as those of the loss do, or name a later step, and have no loss."""
        return self._beyond

    def step_elsewhere(self) -> str:
        """In which line the step of a record of several lines stands; empty of any other log."""
        lines, loss = last_text(self.lines.path), of_loss(self.pattern)
        places = [at for at, line in enumerate(lines) if loss.search(line)][-2:]
        if len(places) < 2 or _STEP.search(lines[places[1]]):
            return ""
        line = next(filter(_STEP.search, map(plain, lines[places[0] + 1 : places[1]])), "").strip()
        where = f"its step stands in another line, {line[:QUOTED]!r}, and a pattern reads one line"
        return f"{where}: print both in one" if line else ""

    def _reading(self, line: str) -> Reading | None:
        # Colours are taken off, but for a pattern that is written for them.
        if "\x1b" in line and r"\x1b" not in self.pattern.pattern:
            line = plain(line)
        if (match := self.pattern.search(line)) is None:
            self._without(line)
            return None
        groups = match.groupdict()
        # Digits and points alone, as patterns often ask for, would be a part of 1,234.5.
        whole = THOUSANDS.match(line, match.start("loss")) if groups["loss"] else None
        loss = as_number(whole[0] if whole else groups["loss"])
        step = as_step(groups.get("step"))
        if loss is None:  # "None", "-", "***"
            self._without(line)
            return None
        if step is None and groups.get("step") is not None:
            return None
        reading = Reading(step, loss if loss else zero_or_nan(line), line, match.start("loss"))
        self._last = reading
        self._first_words = words_of(line[: min(reading.at, BEGINNING)])[:FIRST_WORDS]
        self._step = None if step is None else _after_word(line[: match.start("step")])
        self._beyond.loss()
        return reading

    def _without(self, line: str) -> None:
        if self._last is None:
            return
        if _SKIPPED.search(line):
            self._beyond.skipped(line)
            return
        step = None
        if self._last.step is not None:
            match = self._step.search(line) if self._step else None
            step = as_step(match[1]) if match else None
            if step is None or step <= self._last.step:
                return
        beginning = words_of(line[:BEGINNING])[: len(self._first_words)]
        alike = bool(beginning) and beginning == self._first_words
        if alike or step is not None:
            self._beyond.without(line, step, alike=alike)

    @contextmanager
    def _limited(self) -> Iterator[Callable[[str], None]]:
        """Interrupt searches that take `SEARCH_SECONDS`; what it gives is called with each line.

        Python's `re` looks for signals while it backtracks, and for nothing else; signals reach
        the main thread alone.
        """
        current = ""

        def begin(line: str) -> None:
            nonlocal current
            current = line

        def give_up(*_: object) -> None:
            raise SweeperError(
                f"the pattern {self.pattern.pattern} takes more than {SEARCH_SECONDS:g} s on a "
                f"line of {len(current):,} characters, {current[:80]!r}: it tries too many ways to "
                r"match. Take one without a repetition in a repetition, as in loss (?P<loss>\S+)"
            )

        if current_thread() is not main_thread():
            yield begin
            return
        before = signal.signal(signal.SIGVTALRM, give_up)
        # Virtual: processor time of this process, so that a busy machine is no slow pattern.
        signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_SECONDS)
        try:
            yield begin
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)


def of_loss(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """What of a pattern finds the loss, wherever in a line it stands."""
    parts = re.split(r"\.[*+]\??", pattern.pattern)
    try:
        return re.compile(next(part for part in parts if "(?P<loss>" in part))
    except re.error:
        return pattern


def _after_word(before: str) -> re.Pattern[str] | None:
    """A pattern of numbers behind the last word of `before`, as a step stands; None without one."""
    last = re.search(r"([^\W\d][\w/-]*)[\s:=#'\"(\[]*$", before[-80:])
    if last is None:
        return None
    return re.compile(rf"(?<!\w){re.escape(last[1])}[\s:=#'\"(\[]*(\d[\d,]*)")
