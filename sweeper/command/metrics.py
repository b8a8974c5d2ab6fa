"""Losses of a running command: from its report file, its log, a table, or a tracker's files.

A source is read again and again while the command runs, each time from where it was left.
"""

from __future__ import annotations

import csv
import json
import math
import re
import signal
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sweeper.errors import ConfigError, Keyword, SweeperError


class Reading(NamedTuple):
    """A step, None where the source tells none, the loss there, and the text that says so.

    `at` is where the loss stands in the line.
    """

    step: int | None
    loss: float
    line: str = ""
    at: int = 0

    @property
    def words(self) -> str:
        """The last two words before the loss: two kinds of lines differ in them."""
        before = self.line[max(0, self.at - 100) : self.at]
        return " ".join(re.sub(r"\d+", "#", word) for word in _WORD.findall(before)[-2:])


CHUNK = 1 << 22
"""Bytes of a file that one look takes in: a flood of output must not stop all else."""
LONGEST_LINE = 1 << 16
"""Bytes of a line; the rest of a longer one is passed over."""
SEARCH_SECONDS = 5.0
"""Processor time that a pattern may take: on some lines some would need years."""
LINES_AT_ONCE = 256
"""That share this time."""
SETTLE_SECONDS = 10.0
"""How long a tracker may go on writing after the command has ended."""
LAST_STEP = 2**62
"""No run has so many steps: a larger number is none."""
STEP_NAMES = ("step", "_step", "iteration", "iter", "global_step")
PRINTED = r"where it prints its loss, add 'metric=loss (?P<loss>\S+)' as it prints it"
TRACKERS = {"tensorboard": "an event file", "wandb": "an offline run"}
FORMS = (
    "a regular expression with a group (?P<loss>...) and, if it can, (?P<step>...), or "
    "jsonl:FILE:KEY, csv:FILE:COLUMN, tensorboard:TAG, wandb:KEY"
)


class Source(Protocol):
    """Where losses come from."""

    def read(self, *, ended: bool = False) -> Iterable[Reading]:
        """What is new since the last look; once more, for all that is left, when it `ended`."""
        ...


# A source by what `metric=` says of it: checked before a search, described, opened for a trial.


def check_source(key: str | Keyword, spec: str) -> None:
    """ConfigError for a source that cannot be read."""
    kind, colon, rest = spec.partition(":")
    if colon and kind in ("jsonl", "csv"):
        file = Path(rest.rpartition(":")[0])
        # All three parts: FILE, the colon, NAME.
        if not all(rest.rpartition(":")) or file.is_absolute() or ".." in file.parts:
            raise ConfigError(key, spec, f"{kind}:FILE:NAME, the file within the trial's folder")
    elif colon and kind in ("tensorboard", "wandb"):
        if not rest:
            raise ConfigError(key, spec, f"{kind}:NAME")
        if find_spec(kind) is None:
            allowed = f"a source that can be read: pip install 'sweeper[{kind}]'"
            raise ConfigError(key, spec, allowed)
    else:
        try:
            groups = re.compile(spec).groupindex
        except re.error as error:
            raise ConfigError(key, spec, f"{FORMS} ({error})") from error
        if "loss" not in groups:
            raise ConfigError(key, spec, FORMS)


def describe_source(spec: str | None) -> str:
    """Where losses are read, in words; `spec` is checked."""
    if spec is None:
        lines = '{"step": 1, "loss": 2.3}'
        return (
            f"lines {lines} in the file that SWEEPER_REPORT names; its output with metric=PATTERN"
        )
    kind, colon, rest = spec.partition(":")
    if colon and kind in ("jsonl", "csv"):
        file, _, name = rest.rpartition(":")
        return f"{name} in {file} in the trial's folder, {{dir}}"
    if colon and kind in ("tensorboard", "wandb"):
        return f"{rest} in {TRACKERS[kind]} below the trial's folder, {{dir}}"
    return f"lines of its output that match {spec}"


def make_source(spec: str, folder: Path, log: Path, *, fresh: bool = False) -> Source:
    """The source that a checked `spec` names, its files in the trial's `folder`.

    Of a `fresh` run what the files hold already is an earlier run's.
    """
    kind, _, rest = spec.partition(":")
    match kind:
        case "jsonl" | "csv":
            file, _, name = rest.rpartition(":")
            lines = Lines(folder / file, fresh=fresh)
            return Rows(lines, name) if kind == "jsonl" else Table(lines, name)
        case "tensorboard":
            pattern = "**/*tfevents*"
            others = frozenset(folder.glob(pattern) if fresh else ())
            return Files(folder, pattern, tensorboard(rest), others=others)
        case "wandb":
            pattern = "**/*.wandb"
            others = frozenset(folder.glob(pattern) if fresh else ())
            return Files(folder, pattern, wandb(rest), wandb_is_whole, others)
    return Log(Lines(log), re.compile(spec))


# Text that grows: the log, rows of JSON, a table.


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


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""What colours a text or moves the cursor, and is no part of what a reader sees."""
_WORD = re.compile(r"[^\W\d][\w/-]*")


@dataclass
class Log:
    """Matches of a pattern in the command's own output."""

    lines: Lines
    pattern: re.Pattern[str]

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

    def _reading(self, line: str) -> Reading | None:
        # Colours are taken off, but for a pattern that is written for them.
        if "\x1b" in line and r"\x1b" not in self.pattern.pattern:
            line = plain(line)
        if (match := self.pattern.search(line)) is None:
            return None
        groups = match.groupdict()
        loss, step = as_number(groups["loss"]), as_step(groups.get("step"))
        if loss is None or (step is None and groups.get("step") is not None):
            return None
        return Reading(step, loss, line, match.start("loss"))

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


def plain(line: str) -> str:
    """A line as a terminal shows it, without its colours."""
    return _ANSI.sub("", line)


@dataclass
class Rows:
    """Rows of a file of JSON objects, one a line: those that have the key."""

    lines: Lines
    key: str

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Lines that are no JSON objects are passed over."""
        for line in self.lines.read(ended=ended):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and as_number(record.get(self.key)) is not None:
                yield _of_record(record, self.key, line)


@dataclass
class Table:
    """A column of a CSV file whose first row names the columns."""

    lines: Lines
    column: str

    def __post_init__(self) -> None:
        """Of a table that an earlier run began its first row is read alone."""
        self._header: list[str] = []
        if self.lines.skipped():
            with self.lines.path.open(newline="", errors="replace") as file:
                self._header = _columns(file)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Rows without a number in the column are passed over."""
        for line in self.lines.read(ended=ended):
            try:
                row = next(csv.reader([line]))
            except csv.Error:  # a field that is longer than any number
                continue
            if not self._header:
                self._header = [name.strip() for name in row]
                continue
            record = dict(zip(self._header, row, strict=False))
            if as_number(record.get(self.column)) is not None:
                yield _of_record(record, self.column, line)


def as_number(value: object) -> float | None:
    """`value` as a loss: a number, or a text that reads as one (nan and inf too); else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        # What stands around a number in a log: `loss=2.3,`, `{'loss': 2.3}`.
        return float(value.strip(" \t,;'\"()[]{}") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None


def as_step(value: object) -> int | None:
    """`value` as a step, such as 10, 1,000 or 10/100; None for what is none."""
    if isinstance(value, str):
        value = value.partition("/")[0].replace(",", "")
    step = as_number(value)
    return int(step) if step is not None and 0 <= step < LAST_STEP else None


def _of_record(record: Mapping[str, Any], key: str, line: str = "") -> Reading:
    step = next((record[name] for name in STEP_NAMES if name in record), None)
    loss = as_number(record[key])
    return Reading(as_step(step), math.nan if loss is None else loss, line)


# Trackers: event files of TensorBoard, and offline runs of W&B.


@dataclass
class Files:
    """A tracker's files: those that a pattern finds, each opened by `scan` where it was left.

    A tracker may write a file in a process of its own, until it `is_whole`. `others` are files of
    earlier runs.
    """

    folder: Path
    glob: str
    scan: Callable[[Path], Callable[[], Iterator[Reading]]]
    is_whole: Callable[[Path], bool] = lambda path: True
    others: frozenset[Path] = frozenset()
    _open: dict[Path, Callable[[], Iterator[Reading]]] = field(default_factory=dict)

    def read(self, *, ended: bool = False) -> list[Reading]:
        """What is new in all files, the older file first."""
        readings: list[Reading] = []
        for path in sorted(self.folder.glob(self.glob), key=lambda p: (p.stat().st_mtime_ns, p)):
            if path in self.others:
                continue
            deadline = time.monotonic() + (SETTLE_SECONDS if ended else 0.0)
            while time.monotonic() < deadline and not self.is_whole(path):
                time.sleep(0.05)
            if path not in self._open:
                self._open[path] = self.scan(path)
            readings += self._open[path]()
        return readings


def tensorboard(tag: str) -> Callable[[Path], Callable[[], Iterator[Reading]]]:
    """Scalars of a tag in TensorBoard's event files."""

    def scan(path: Path) -> Callable[[], Iterator[Reading]]:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        loader = EventFileLoader(str(path))

        def readings() -> Iterator[Reading]:
            for event in loader.Load():
                for value in event.summary.value:
                    # A tensor, since the loader turns the simple values of older writers into
                    # tensors.
                    if value.tag == tag and value.HasField("tensor") and value.tensor.float_val:
                        yield Reading(event.step, float(value.tensor.float_val[0]))

        return readings

    return scan


def hparams(path: Path) -> dict[str, Any]:
    """Hyperparameters in an event file, as the HParams plugin of TensorBoard keeps them."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found: dict[str, Any] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == "_hparams_/session_start_info":
                data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                for name, one in data.session_start_info.hparams.items():
                    found[name] = getattr(one, one.WhichOneof("kind") or "null_value")
    return found


def wandb(key: str) -> Callable[[Path], Callable[[], Iterator[Reading]]]:
    """Values of a key in the history of an offline run of W&B."""

    def scan(path: Path) -> Callable[[], Iterator[Reading]]:
        seen = 0

        def readings() -> Iterator[Reading]:
            nonlocal seen
            rows = [row for row in history(path) if as_number(row.get(key)) is not None]
            # The file is read anew each time: its records cannot be taken up in their middle.
            new, seen = rows[seen:], len(rows)
            yield from (_of_record(row, key) for row in new)

        return readings

    return scan


def online_wandb(key: str | Keyword, run: str, name: str) -> Source:
    """Values of `name` in the history of a run on a server of W&B, "entity/project/run".

    ConfigError for a run that the server does not show; `key` is the flag that names it.
    """
    if find_spec("wandb") is None:
        allowed = "a source that can be read: pip install 'sweeper[wandb]'"
        raise ConfigError(key, f"wandb:{run}:{name}", allowed)
    return Online(key, run, name)


@dataclass
class Online:
    """See `online_wandb`; each look asks for the steps behind the last."""

    flag: str | Keyword
    run: str
    key: str
    _next: int = 0

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Rows that have the key."""
        import wandb

        try:
            history = (
                wandb.Api()
                .run(self.run)
                .scan_history(keys=["_step", self.key], min_step=self._next)
            )
            for row in history:
                self._next = max(self._next, int(row["_step"]) + 1)
                if as_number(row.get(self.key)) is not None:
                    yield _of_record(row, self.key)
        except (wandb.errors.Error, ValueError) as error:
            allowed = f"a run that W&B shows you ({error})"
            raise ConfigError(self.flag, f"wandb:{self.run}:{self.key}", allowed) from error


# W&B has no function that reads its offline runs. They are logs as LevelDB writes them: blocks of
# 32 KiB, in each of them records with a checksum, a length and a kind that says whether it is whole
# or a part; a record is a protobuf message.


BLOCK, HEADER = 32768, 7
WHOLE, FIRST, LAST = 1, 2, 4


def history(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of the run's history so far, values by key; its step as `_step`."""
    for record in _parsed(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            yield {"_step": record.history.step.num, **row}


def wandb_is_whole(path: Path) -> bool:
    """Whether the run has ended in its file: W&B's own process writes it a moment later."""
    return any(record.WhichOneof("record_type") == "exit" for record in _parsed(path))


def wandb_facts(path: Path) -> tuple[str, dict[str, Any], str]:
    """The run's name, its configuration by key, and whether it is finished, crashed or running."""
    name, config, state = path.stem, dict[str, Any](), "running"
    for record in _parsed(path):
        kind = record.WhichOneof("record_type")
        if kind == "exit":
            state = "crashed" if record.exit.exit_code else "finished"
        elif kind in ("run", "config"):
            if kind == "run":
                name = record.run.display_name or record.run.run_id or name
            changes = record.run.config if kind == "run" else record.config
            for item in changes.update:
                config[".".join(item.nested_key) or item.key] = json.loads(item.value_json)
            for item in changes.remove:
                config.pop(".".join(item.nested_key) or item.key, None)
    config.pop("_wandb", None)
    return name, config, state


def _parsed(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    return map(Record.FromString, _records(path.read_bytes()))


def _records(data: bytes) -> Iterator[bytes]:
    """Whole records; a last one that is still being written is left out."""
    # The file begins with W&B's own seven bytes, ":W&B", a magic number and a version. Checksums
    # are not compared: what is still being written is known by its length.
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        # A rest of a block that holds no header is padding.
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        payload = data[place + HEADER : place + HEADER + length]
        if kind == 0 or len(payload) < length:
            return
        place += HEADER + length
        parts = payload if kind in (WHOLE, FIRST) else parts + payload
        if kind in (WHOLE, LAST):
            yield parts


# What a source has in place of what was asked for, said where no loss is found.


MOST = 20
"""Names that a sentence lists."""


def contents(
    spec: str, folder: Path, advice: str = "the command must write it to its own folder, {dir}"
) -> str:
    """What the source that `spec` names holds in a run's `folder`; empty for the log.

    `advice` is what to do about a file that is not there; a trial's if not given.
    """
    kind, _, rest = spec.partition(":")
    match kind:
        case "jsonl" | "csv":
            name, _, wanted = rest.rpartition(":")
            if not (path := folder / name).is_file():
                return f"{name} is not there: {advice}"
            if kind == "csv":
                return _sentence(name, "columns", _columns(Lines(path).read()), wanted)
            return _sentence(name, "keys in its last line", _keys(last_text(path)), wanted)
        case "tensorboard":
            return _of_tracker("event file", sorted(folder.glob("**/*tfevents*")), tags, rest)
        case "wandb":
            return _of_tracker("offline run", sorted(folder.glob("**/*.wandb")), history_keys, rest)
    return ""


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


def _columns(lines: Iterable[str]) -> list[str]:
    """The names in the first row of a CSV file."""
    return [name.strip() for name in next(csv.reader(lines), [])]


def _keys(lines: list[str]) -> list[str]:
    """The keys of the last line that is a JSON object; none where none is."""
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return [*record]
    return []


def _of_tracker(
    kind: str, paths: list[Path], names: Callable[[Path], Iterable[str]], wanted: str
) -> str:
    if not paths:
        return f"there is no {kind} below the trial's own folder, {{dir}}"
    present = sorted({name for path in paths for name in names(path)})
    return _sentence(f"the {kind}", "tags" if names is tags else "keys", present, wanted)


def tags(path: Path) -> Iterable[str]:
    """Tags of an event file, one a value."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        value.tag for event in EventFileLoader(str(path)).Load() for value in event.summary.value
    ]


def history_keys(path: Path) -> Iterable[str]:
    """Keys of a run's history, one a value; W&B's own, which begin with a line below, left out."""
    return [key for row in history(path) for key in row if not key.startswith("_")]


def _sentence(where: str, what: str, names: Sequence[str], wanted: str) -> str:
    if wanted in names:
        return f"{where} has {wanted}, but no number under it"
    listed = ", ".join([*names[:MOST], *(["..."] if len(names) > MOST else [])])
    return f"{where} has no {wanted}; {what}: {listed or 'none'}"


# Losses by step, as a command reports them: now and then, some anew after a restart.


class Series:
    """Losses by step. A step that lies before the last one begins the run anew from there."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.steps, self.losses = array("q"), array("d")
        self.counted = False
        self._not_finite = 0

    @classmethod
    def of(cls, steps: NDArray[np.float64], losses: NDArray[np.float64]) -> Series:
        """Of ascending whole `steps` and the `losses` there, of one length."""
        series = cls()
        series.steps.frombytes(steps.astype(np.int64).tobytes())
        series.losses.frombytes(losses.astype(np.float64).tobytes())
        series._not_finite = int((~np.isfinite(losses)).sum())
        return series

    def __len__(self) -> int:
        return len(self.losses)

    def add(self, readings: Iterable[Reading]) -> None:
        """Take readings in the order of their reports; those without a step are counted."""
        for reading in readings:
            step, loss = reading.step, reading.loss
            if step is None:
                self.counted = True
                step = len(self.steps)
            while self.steps and self.steps[-1] >= step:  # a resumed run tells some steps again
                self.steps.pop()
                self._not_finite -= not math.isfinite(self.losses.pop())
            self.steps.append(step)
            self.losses.append(loss)
            self._not_finite += not math.isfinite(loss)

    def last_step(self) -> int:
        """The last step that was reported; -1 before the first."""
        return self.steps[-1] if self.steps else -1

    def finite(self) -> bool:
        """Whether every loss is a finite number."""
        return not self._not_finite

    def dense(self, steps: int, *, whole: bool) -> NDArray[np.float64]:
        """A loss for every step up to the last reported one, or of a `whole` run up to `steps`.

        A loss stands for the steps since the one before. Counted ones are spread evenly over
        a whole run.
        """
        at = np.array(self.steps)
        if self.counted and whole:
            # The i-th of n losses stands at the end of the i-th of n equal parts of the run.
            at = np.ceil((np.arange(len(at)) + 1) * steps / len(at)).astype(int) - 1
        last = steps - 1 if whole else min(int(at[-1]), steps - 1)
        # Each step has the loss of the next report; steps behind the last have that of the last.
        places = np.minimum(np.searchsorted(at, np.arange(last + 1)), len(at) - 1)
        return np.array(self.losses, np.float64)[places]

    def exceeds(self, steps: int) -> bool:
        """Whether steps were reported that lie beyond the run by more than one interval."""
        if self.counted or not self.steps:
            return False
        return self.last_step() > steps + int(np.diff([0, *self.steps]).max())

    def reaches(self, steps: int, window: int) -> bool:
        """Whether the run came to its end: within the last stretch, or one interval of reports."""
        if self.counted or not self.steps:
            return bool(self.steps)
        interval = int(np.diff([0, *self.steps]).max())
        return self.last_step() >= steps - 1 - max(window, interval)
