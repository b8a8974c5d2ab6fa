"""The log of a run that goes on: its losses by step, each look from where the last one ended."""

from __future__ import annotations

import lzma
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple
from weakref import finalize

from sweeper.command.metrics import metric_of
from sweeper.command.metrics.pattern import Log
from sweeper.command.metrics.tracker_files import Online
from sweeper.command.reading import MetricSource, Reading, as_number, end_of
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.evidence.runs.table import UNPACKED, unpacked_blocks

LOGS = ("*.log", "*.out", "*.txt")
PACKED = (*UNPACKED, ".zst")
"""Endings of packed logs; one that cannot be unpacked here is told, not passed over."""
EVALUATED = re.compile(r"(?i)(?<![a-z])(val|valid|validation|eval|evaluation|test|dev|held)")
RATE = re.compile(r"(?i)(?<![a-z])(?:lr|learning[ _-]?rate)['\"]?\s*[:=]\s*['\"]?([-+.\de]+)")
LEAST_KIND = 2
"""Lines of a kind before two kinds are told apart."""
ONLINE = re.compile(r"wandb:([^:/]+/[^:/]+/[^:/]+):(.+)")


class LoggedLoss(NamedTuple):
    """A loss and, where known, the rate at that step; `lr_there` stands in the loss's own line."""

    step: int
    loss: float
    lr: float | None
    lr_there: float | None = None


@dataclass
class RunLog:
    """Where a run writes its losses, `metric`, and where its learning rates, `lr`, below `place`.

    `place` is the run's folder, or its log for a pattern. What rotation put aside (run.log.1,
    or packed run.log.1.gz) comes first. BadInput and ConfigError for what cannot be read, or would
    be read wrongly.
    """

    metric: str
    place: Path
    lr: str = ""
    _sources: list[MetricSource] = field(default_factory=list)
    _lr_sources: list[MetricSource] = field(default_factory=list)
    _rates: dict[int, float] = field(default_factory=dict)
    _kinds: Counter[str] = field(default_factory=Counter)
    _losses: int = 0
    _unpacked: Path | None = None

    def __post_init__(self) -> None:
        self._sources = self._open(Keyword("metric"), self.metric)
        if self.lr:
            # A pattern names what it finds `loss`, whatever that is; here it may say lr too.
            spec = self.lr.replace("(?P<lr>", "(?P<loss>")
            self._lr_sources = self._open(Keyword("lr"), spec)

    def _open(self, key: Keyword, spec: str) -> list[MetricSource]:
        if online := ONLINE.fullmatch(spec):
            return [Online(key, online[1], online[2])]
        metric_of(spec, key)
        kind, colon, rest = spec.partition(":")
        if colon and kind in ("tensorboard", "wandb"):
            return [metric_of(spec).open(self._folder(), self.place)]
        if colon and kind in ("jsonl", "csv"):
            name, _, series = rest.rpartition(":")
            logs = [self._plain(key, log) for log in rotated(self._folder() / name)]
            return [metric_of(f"{kind}:{log.name}:{series}").open(log.parent, log) for log in logs]
        logs = [self._plain(key, log) for log in rotated(self._log())]
        return [metric_of(spec).open(log.parent, log) for log in logs]

    def _plain(self, key: Keyword, log: Path) -> Path:
        """A log that was packed, unpacked aside: it grows no more."""
        if log.suffix not in PACKED or not log.is_file():
            return log
        if log.suffix not in UNPACKED:
            allowed = f"a log that is unpacked, or ends in one of {', '.join(UNPACKED)}"
            raise ConfigError(key, str(log), allowed)
        if self._unpacked is None:
            self._unpacked = Path(mkdtemp(prefix="sweeper-"))
            finalize(self, shutil.rmtree, self._unpacked, ignore_errors=True)
        plain = self._unpacked / f"{log.name}.txt"
        try:
            with plain.open("wb") as file:
                file.writelines(unpacked_blocks(log))
        except (OSError, EOFError, OverflowError, zlib.error, lzma.LZMAError) as error:
            raise ConfigError(key, str(log), f"a log that can be unpacked ({error})") from error
        return plain

    def _folder(self) -> Path:
        if not self.place.is_dir():
            raise ConfigError(Keyword("run"), str(self.place), "the folder that the run writes to")
        return self.place

    def _log(self) -> Path:
        if self.place.is_file():
            return self.place
        if not self.place.is_dir():
            raise ConfigError(Keyword("run"), str(self.place), "a log, or a folder with one")
        packed = tuple(f"{pattern}{ending}" for pattern in LOGS for ending in PACKED)
        for patterns in (LOGS, packed):
            logs = sorted(path for pattern in patterns for path in self.place.glob(pattern))
            if logs:
                break
        if len(logs) != 1:
            names = ", ".join(path.name for path in logs[:10]) or "none"
            allowed = f"the log itself; its folder has of {', '.join(LOGS)}: {names}"
            raise ConfigError(Keyword("run"), str(self.place), allowed)
        return logs[0]

    def read(self, *, ended: bool = False) -> Iterator[LoggedLoss]:
        """What is new since the last look; with `ended`, a last line without an end too."""
        # Rates first, so that a loss of the same look finds that of its step.
        for source in self._lr_sources:
            for reading in source.read(ended=ended):
                if reading.step is not None:
                    self._rates[reading.step] = reading.loss
        for source in self._sources:
            for reading in source.read(ended=ended):
                yield self._logged(reading)

    def readings(self) -> Iterator[Reading]:
        """All losses of a run that has ended."""
        for point in self.read(ended=True):
            yield Reading(point.step, point.loss)

    @property
    def silent(self) -> int | None:
        """The last step that the log names where it goes on without a loss; else None."""
        # The last source is the log itself; what rotation put aside goes on in it.
        beyond = self._sources[-1].beyond()
        return beyond.step if beyond.went_on(reached=False) else None

    def _logged(self, reading: Reading) -> LoggedLoss:
        self._losses += 1
        if reading.step is None:
            source = self._sources[-1]
            elsewhere = source.step_elsewhere() if isinstance(source, Log) else ""
            raise ConfigError(
                Keyword("metric"),
                self.metric,
                r"a source that tells steps, as in 'step (?P<step>\d+).*loss (?P<loss>\S+)', "
                f"or a column named step{elsewhere and '; '}{elsewhere}",
            )
        if reading.label:
            self._kinds[reading.label] += 1
            usual = {kind for kind, count in self._kinds.items() if count >= LEAST_KIND}
            evaluated = {kind for kind in usual if EVALUATED.search(kind)}
            if evaluated and usual - evaluated:
                training, evaluation = min(usual - evaluated), min(evaluated)
                raise ConfigError(
                    Keyword("metric"),
                    self.metric,
                    f"a pattern that takes the training loss alone: it finds {training!r} and "
                    f"{evaluation!r}",
                )
        rate = RATE.search(reading.line)
        lr_there = as_number(rate[1]) if rate else None
        return LoggedLoss(reading.step, reading.loss, self._rates.get(reading.step), lr_there)

    def check_found(self) -> None:
        """BadInput where no loss was found so far, with what there is instead."""
        if self._losses:
            return
        there = ""
        if not ONLINE.fullmatch(self.metric):
            folder = self.place if self.place.is_dir() else self.place.parent
            advice = "name the folder that the run writes to, and the file below that"
            there = metric_of(self.metric).contents(folder, advice)
            there = f"; {there or end_of(self._plain(Keyword('metric'), self._log()))}"
        raise BadInput(
            f"no loss was found in {self.place} by ", Keyword("metric", self.metric), there
        )


def rotated(path: Path) -> list[Path]:
    """What rotation left of a log, the oldest first, and the log: run.log.2.gz, run.log.1, run.log.

    A log that is there packed alone, run.log.gz, stands for itself.
    """
    older = {
        int(number): sibling
        # Of a file and its packed copy, which comes after it, the first counts.
        for sibling in sorted(path.parent.glob(f"{escape(path.name)}.*"), reverse=True)
        for name in (sibling.stem if sibling.suffix in PACKED else sibling.name,)
        if (number := name.removeprefix(f"{path.name}.")).isdecimal()
    }
    packed = [path.with_name(f"{path.name}{ending}") for ending in PACKED]
    last = next((log for log in packed if not path.exists() and log.is_file()), path)
    return [*(older[number] for number in sorted(older, reverse=True)), last]
