"""What the kinds of `metric=` share: a kind's protocol, its source, readings, growing files."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from sweeper.errors import ConfigError, Keyword

LAST_STEP = 2**62
"""No run has so many steps: a larger number is none."""
STEP_NAMES = ("step", "_step", "iteration", "iter", "global_step")
IN_FOLDER = "the command must write it to its own folder, {dir}"
MOST = 20
"""Names that a sentence lists."""
SETTLE_SECONDS = 10.0
"""How long a tracker may go on writing after the command has ended."""
LEAST_LATER = 3
"""Steps behind the last loss before other lines than those of the loss count as a sign."""
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+\.\d*(?:[eE][-+]?\d+)?")
"""A number with commas between thousands; without a point a comma may be a decimal one."""
_WORD = re.compile(r"[^\W\d][\w/-]*")
_NO_GRADIENT = re.compile(r"grad(ient)?[ _-]?norm['\"]?\s*[:=]\s*['\"]?-?nan\b", re.I)


class Reading(NamedTuple):
    """A step, None where the source tells none, the loss there, and the text that says so.

    `at` is where the loss stands in the line.
    """

    step: int | None
    loss: float
    line: str = ""
    at: int = 0

    @property
    def label(self) -> str:
        """The last two words before the loss: two kinds of lines differ in them."""
        before = self.line[max(0, self.at - 100) : self.at]
        return " ".join(re.sub(r"\d+", "#", word) for word in words_of(before)[-2:])


@dataclass
class Beyond:
    """What a source shows behind its last loss: a run that goes on without one has diverged.

    `alike` are the lines or rows that are like those of the loss but have none, `later` those that
    name a later step; `step` is the last one that they name, `line` one of them. Between two losses
    there were at most `usual` such lines.
    """

    alike: int = 0
    later: int = 0
    step: int | None = None
    line: str = ""
    usual: tuple[int, int] = (0, 0)

    def loss(self) -> None:
        """A loss was read: what lay before it was no end."""
        self.usual = (max(self.usual[0], self.alike), max(self.usual[1], self.later))
        self.alike = self.later = 0
        self.step, self.line = None, ""

    def without(self, line: str, step: int | None, *, alike: bool) -> None:
        """Take a line without a loss; its `step` is later than the last loss's."""
        if step is not None and (self.step is None or step > self.step):
            self.step, self.later = step, self.later + 1
        self.alike += alike
        if alike or not self.line:
            self.line = line.strip()

    def skipped(self, line: str) -> None:
        """Take a line that says that a step was left out: one such is usual, many are not."""
        self.later += 1
        self.line = self.line or line.strip()

    def went_on(self, *, reached: bool) -> bool:
        """Whether the run went on without a loss; `reached`: its last one is near its end."""
        # A script that has trained to its end, or stopped early, may still print a line or two.
        alike = self.alike > self.usual[0] and self.alike >= (LEAST_LATER if reached else 1)
        return alike or (not reached and self.later > self.usual[1] and self.later >= LEAST_LATER)


class MetricSource(Protocol):
    """Where losses come from; it is read again and again, each time from where it was left."""

    def read(self, *, ended: bool = False) -> Iterable[Reading]:
        """What is new since the last look; once more, for all that is left, when it `ended`."""

    def beyond(self) -> Beyond:
        """What was seen behind the last loss; nothing where the source cannot tell."""
        return Beyond()


def by_time(path: Path) -> tuple[int, str]:
    """The older file first."""
    return path.stat().st_mtime_ns, str(path)


@dataclass
class Files(MetricSource):
    """A run's files that a pattern finds, in some order, each read by a source of its own.

    A tracker may write a file in a process of its own, until it `is_whole`. `others` are files of
    earlier runs.
    """

    folder: Path
    glob: str
    source_of: Callable[[Path], MetricSource]
    is_whole: Callable[[Path], bool] = lambda path: True
    others: frozenset[Path] = frozenset()
    order: Callable[[Path], tuple[int, str]] = by_time
    _sources: dict[Path, MetricSource] = field(default_factory=dict)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """What is new in each."""
        for path in sorted(set(self.folder.glob(self.glob)) - self.others, key=self.order):
            deadline = time.monotonic() + (SETTLE_SECONDS if ended else 0.0)
            while time.monotonic() < deadline and not self.is_whole(path):
                time.sleep(0.05)
            if path not in self._sources:
                self._sources[path] = self.source_of(path)
            yield from self._sources[path].read(ended=ended)

    def beyond(self) -> Beyond:
        """Behind the last loss of the last file."""
        last = max(self._sources, key=self.order, default=None)
        return Beyond() if last is None else self._sources[last].beyond()


class Metric(Protocol):
    """A kind of `metric=`: a class below `metrics/`, which nothing else names.

    `form` is how it is written, such as `csv:FILE:COLUMN`: the kind's name and, behind a colon,
    what `parse` takes.
    """

    form: ClassVar[str]

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Metric:
        """Take what stands behind the colon; ConfigError, for `key`, where it cannot be read."""

    def describe(self) -> str:
        """Where losses are read, in words."""

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """Its source in a run's `folder`, whose output goes to `log`.

        Of a `fresh` run what the files hold already is an earlier run's.
        """

    def contents(self, folder: Path, advice: str = IN_FOLDER) -> str:
        """What is there where no loss was found; `advice` is for a file that is not there."""
        return ""


@dataclass(frozen=True)
class InFile(Metric):
    """What stands under `name` in the rows of `file`, which lies in the run's folder.

    `called` says what its names are, such as columns.
    """

    file: str
    name: str

    called: ClassVar[str]

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Self:
        """FILE:NAME; ConfigError where one lacks, or the file lies elsewhere."""
        file, colon, name = rest.rpartition(":")
        path = PurePath(file)
        if not (file and colon and name) or path.is_absolute() or ".." in path.parts:
            raise ConfigError(key, rest, f"{cls.form}, the file within the trial's folder")
        return cls(file, name)

    def describe(self) -> str:
        """The name and the file."""
        return f"{self.name} in {self.file} in the trial's folder, {{dir}}"

    def contents(self, folder: Path, advice: str = IN_FOLDER) -> str:
        """The names that the file has."""
        if not (path := folder / self.file).is_file():
            return f"{self.file} is not there: {advice}"
        return present(self.file, self.called, self.names(path), self.name)

    def names(self, path: Path) -> list[str]:
        """Names in the file at `path`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Below(Metric):
    """What stands under `name` in `files` of a kind, wherever they lie below the run's folder.

    `file` is what one of them is called, `place` with its article; `called` says what its names
    are, such as columns. A `library` may be needed to read it.
    """

    name: str

    files: ClassVar[str]
    file: ClassVar[str]
    place: ClassVar[str]
    called: ClassVar[str] = "keys"
    library: ClassVar[str] = ""

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Self:
        """The name; ConfigError where it is empty, or the library lacks."""
        if not rest:
            raise ConfigError(key, rest, cls.form)
        if cls.library and find_spec(cls.library) is None:
            allowed = f"a source that can be read: pip install 'sweeper[{cls.library}]'"
            raise ConfigError(key, rest, allowed)
        return cls(rest)

    def describe(self) -> str:
        """The name and the file."""
        return f"{self.name} in {self.place} below the trial's folder, {{dir}}"

    def contents(self, folder: Path, advice: str = IN_FOLDER) -> str:
        """The names in all files."""
        paths = sorted(folder.glob(self.files))
        if not paths:
            return f"there is no {self.file} below the trial's own folder, {{dir}}"
        names = sorted({name for path in paths for name in self.names(path)})
        return present(f"the {self.file}", self.called, names, self.name)

    def names(self, path: Path) -> Iterable[str]:
        """Names in the file at `path`."""
        raise NotImplementedError


@dataclass
class RowReader:
    """Readings of rows, which are mappings: those that have a number under `key`."""

    key: str
    beyond: Beyond = field(default_factory=Beyond)
    _last: int | None = None
    _keys: frozenset[str] = frozenset()

    def reading(self, record: Mapping[str, Any], line: str = "") -> Reading | None:
        """The row's reading; None for one without a loss."""
        filled = frozenset(k for k, value in record.items() if value is not None and value != "")
        step = as_step(next((record[name] for name in STEP_NAMES if name in record), None))
        loss = as_number(record.get(self.key))
        if loss is None:
            later = step is None or self._last is None or step > self._last
            if self._keys and later:
                alike = self._keys <= filled and bool(self._keys - {*STEP_NAMES})
                self.beyond.without(line or str(dict(record)), step, alike=alike)
            return None
        others = filled - {self.key}
        # A row that now and then has more, such as a held-out loss, is like one that has less.
        self._keys = others & self._keys or others
        self._last = step
        self.beyond.loss()
        return Reading(step, loss if loss else zero_or_nan(line), line)


def words_of(text: str) -> list[str]:
    """The words of a text, without its numbers."""
    return _WORD.findall(text)


def zero_or_nan(line: str) -> float:
    """A loss of exactly 0: NaN where the line says that the gradient is none.

    transformers' Trainer puts 0 in the place of losses that are not finite.
    """
    return math.nan if _NO_GRADIENT.search(line) else 0.0


def as_number(value: object) -> float | None:
    """`value` as a loss: a number, or a text that reads as one (nan and inf too); else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        # What stands around a number in a log: `loss=2.3,`, `{'loss': 2.3}`.
        value = value.strip(" \t,;'\"()[]{}")
        value = value.replace(",", "") if THOUSANDS.fullmatch(value) else value
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def as_step(value: object) -> int | None:
    """`value` as a step, such as 10, 1,000 or 10/100; None for what is none."""
    if isinstance(value, str):
        value = value.partition("/")[0].replace(",", "")
    step = as_number(value)
    return int(step) if step is not None and 0 <= step < LAST_STEP else None


def present(where: str, what: str, names: Iterable[str], wanted: str) -> str:
    """What a source has in the place of `wanted`, in a sentence."""
    names = list(names)
    if wanted in names:
        return f"{where} has {wanted}, but no number under it"
    listed = ", ".join([*names[:MOST], *(["..."] if len(names) > MOST else [])])
    return f"{where} has no {wanted}; {what}: {listed or 'none'}"


CHUNK = 1 << 22
"""Bytes of a file that one look takes in: a flood of output must not stop all else."""
LONGEST_LINE = 1 << 16
"""Bytes of a line; the rest of a longer one is passed over."""
LAST_LINES = 10
"""Of a log, that a message quotes."""
QUOTED = 120
"""Characters of a line that it quotes."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""What colours a text or moves the cursor, and is no part of what a reader sees."""


class Lines:
    """New lines of a growing file; half a line waits for its other half."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """The file need not be there yet; of a `fresh` run what is there already is another's."""
        self.path, self._at, self._rest = path, 0, b""
        if fresh and path.exists():
            self._at = path.stat().st_size

    def skipped(self) -> bool:
        """Whether an earlier run's lines were passed over."""
        return self._at > 0

    def read(self, *, ended: bool = False) -> Iterator[str]:
        """Whole lines, carriage returns ending them too; when it `ended`, all that is left."""
        # What a process left behind goes on writing is not waited for.
        end = self.path.stat().st_size if ended and self.path.exists() else 0
        while data := self._chunk():
            yield from self._split(data)
            if self._at >= end:
                break
        if ended and self._rest:
            rest, self._rest = self._rest, b""
            yield rest.decode(errors="replace")

    def _chunk(self) -> bytes:
        try:
            if not self.path.is_file():  # a pipe would be waited for
                return b""
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._at:  # it was begun anew
                    self._at, self._rest = 0, b""
                file.seek(self._at)
                data = file.read(CHUNK)
        except OSError:
            return b""
        self._at += len(data)
        return data

    def _split(self, data: bytes) -> list[str]:
        # \r too: progress bars rewrite a line by it, and end none for minutes.
        *whole, rest = re.split(rb"[\r\n]+", self._rest + data)
        self._rest = rest[:LONGEST_LINE]
        return [line[:LONGEST_LINE].decode(errors="replace") for line in whole if line]


def plain(line: str) -> str:
    """A line as a terminal shows it, without its colours."""
    return _ANSI.sub("", line)


def last_text(path: Path) -> list[str]:
    """The lines of a file's last `CHUNK`; none where it cannot be read."""
    if not path.is_file():
        return []
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - CHUNK))
            data = file.read(CHUNK)
    except OSError:
        return []
    return [x[:LONGEST_LINE].decode(errors="replace") for x in re.split(rb"[\r\n]+", data) if x]


def end_of(log: Path) -> str:
    """The last lines of a log in which no loss was found, on one line."""
    lines = [repr(plain(line).strip()[:QUOTED]) for line in last_text(log)[-LAST_LINES:]]
    return f"the last lines of {log.name}: {', '.join(lines)}" if lines else f"{log.name} is empty"
