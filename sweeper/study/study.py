"""The durable history of one study: a line a result, which Optuna's study is told.

The record is a set of files of JSON lines that only ever grow at their ends. An append is the one
write that a kill cannot make worse than a torn last line, and needs no lock against readers. Each
run of the driver starts a new file, so that nothing is ever written behind a torn line. A line
that cannot be read costs its trial alone: it is set aside, never deleted, and the trial runs again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import KeysView, Mapping, Sequence
from contextlib import suppress
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sweeper.errors import BadInput, Call, ConfigError, SweeperError, suggest
from sweeper.files import (
    RECORD_ERRORS,
    append,
    check_summed,
    digest_of,
    is_text,
    note_damage,
    note_record,
    owner_of,
    parse_json,
    private_folder,
    remove_leftovers,
    replacing,
    sum_of,
    try_json,
    write_json,
)
from sweeper.records import from_json, to_json
from sweeper.study.folder import StudyFolder, studies
from sweeper.study.lock import check_contents, check_held, live_holder
from sweeper.trial import FORMAT, OtherFormat, Result, Space, Trial, TrialSpec

if TYPE_CHECKING:
    from sweeper.search.optuna.recording import OptunaStudy

COUNTS = "counts.json"
"""Beside the result files: how many lines each of them has, and their sum."""
_NAME_RE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_FORMAT_RE = re.compile(r"^format: (\d+)$", re.MULTILINE)
_SUM_RE = re.compile(rb', "sum": "([0-9a-f]{16})"\}\s*\Z')


class StudyRecord:
    """The results of one study; one driver writes it, which holds the study's `StudyLock`.

    The record is `<folder>/results/*.jsonl`: a line for each result. The Optuna study of the
    folder's name is told every trial, for dashboards: losing it loses nothing. `notices` collects
    what the user should be told; it never holds a password.
    """

    def __init__(self, folder: Path) -> None:
        """Use `open` or `read`."""
        self.folder = folder
        self.name = folder.name
        self.notices: list[str] = []
        self._results: dict[str, Result] = {}
        self._lines: dict[str, int] = {}
        self._begun: dict[str, str] = {}
        self._file: Path | None = None
        self._size = 0
        self._optuna: OptunaStudy | None = None

    @classmethod
    def open(
        cls, folder: Path, storage: str | None = None, space: Space | None = None
    ) -> StudyRecord:
        """Open the study in `folder` for its driver: create, clean up, tell Optuna what it lacks.

        `storage` is any Optuna RDB URL, by default the journal file `study.journal` in the folder;
        ranges of hyperparameters are those of `space`. BadInput when the folder or an external
        storage cannot be used, or another version of sweeper wrote the study; a damaged
        `study.journal` is set aside.
        """
        # Here, since who only reads a study does without Optuna.
        from sweeper.search.optuna.recording import OptunaStudy

        folder = folder.absolute()
        check_study_name(folder.name)
        check_folder(folder)
        study = cls(folder)
        try:
            private_folder(folder)
            private_folder(folder / "results")
            remove_leftovers(folder / "results")
            study._load(repair=True)
        except OSError as error:
            raise BadInput(f"no study can be kept in {folder}: {error}") from error
        study._optuna = OptunaStudy(folder, storage, study._results, study.notices, space or {})
        study._optuna.start()
        return study

    @classmethod
    def read(cls, folder: Path, *, curves: bool = True) -> Self:
        """The study in `folder` as it is now, without writing anything or touching Optuna.

        Without `curves` those of results are empty: they are most of what there is to read.
        BadInput when there is no such folder, or another version of sweeper wrote it.
        """
        folder = folder.absolute()
        if not folder.is_dir():
            raise BadInput(f"there is no study in {folder}")
        check_folder(folder)
        study = cls(folder)
        study._load(repair=False, curves=curves)
        return study

    def __enter__(self) -> StudyRecord:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection to Optuna's storage."""
        self.close()

    def close(self) -> None:
        """Close the connection to Optuna's storage; a later `record` opens it again.

        What the record has is kept: every line that is there says nothing of one that was taken
        out, or put in. A driver that is killed leaves what the one before has kept.
        """
        if self._optuna:
            self._optuna.close()
            folder = self.folder / "results"
            with suppress(OSError):
                # Of as many lines as are known: one may have been written as a signal came.
                kept = {
                    name: {"lines": lines, "sum": sum_of(_first(folder / name, lines))}
                    for name, lines in self._lines.items()
                }
                if kept and try_json(folder / COUNTS) != kept:
                    write_json(folder / COUNTS, kept)

    def __contains__(self, key: object) -> bool:
        return key in self._results

    def __len__(self) -> int:
        return len(self._results)

    def keys(self) -> KeysView[str]:
        """Keys of all trials that have a result."""
        return self._results.keys()

    def get(self, key: str) -> Result | None:
        """The result of the trial of this key, or None."""
        return self._results.get(key)

    def results(self) -> list[Result]:
        """All results, in the order in which they were finished (then by key)."""
        return sorted(self._results.values(), key=lambda r: (r.finished_at, r.key))

    def propose(self, trials: Sequence[Trial], space: Space) -> None:
        """Enqueue and ask in Optuna's study what is to be trained; trouble becomes a notice."""
        if self._optuna is not None:
            self._optuna.propose(trials, space)

    def record(self, results: Sequence[Result]) -> None:
        """Keep `results`: when this returns, they are on the disk and no crash can lose them.

        One result is kept for each trial: a failure gives way to any newer result, and a pruned
        trial to one that was trained to its end. Optuna is told; trouble with it becomes a notice.
        SweeperError when they cannot be written, or the study is not this driver's any more, and
        ValueError for a result that could not be read back; then nothing was recorded.
        """
        if self._optuna is None:
            raise RuntimeError("this study was opened for reading only")
        new: dict[str, Result] = {}
        for result in results:
            if _replaces(result, new.get(result.key) or self._results.get(result.key)):
                new[result.key] = result
        if not new:
            return
        check_held(self.folder)
        data = b"".join(map(_to_line, new.values()))
        if lost := self._lost_files():
            # Somebody removed or cut what was recorded; it is all in memory, and written again.
            data = b"".join(map(_to_line, (self._results | new).values()))
            self._file = None
        # The file first, Optuna last: what it was told is always in the record.
        path = self._file or _next_file(self.folder / "results")
        self._file = None  # a failed write may leave a part of a line: the next one starts a file
        try:
            append(path, data)
        except OSError as error:
            raise SweeperError(
                f"cannot record a result in {path}: {error.strerror or error}. What was recorded "
                "before is safe: make room or give access, then run the same command again"
            ) from error
        self._file, self._size = path, path.stat().st_size
        self._results |= new
        self._lines[path.name] = self._lines.get(path.name, 0) + len(new)
        if lost:
            self._lines = {path.name: len(self._results)}
            for old in {*lost} - {path}:
                old.unlink(missing_ok=True)
            self.notices.append(
                f"{' and '.join(map(str, lost))} lost results while this search ran: they are "
                f"written again, into {path.name}"
            )
        self._optuna.tell(list(new.values()))

    def _lost_files(self) -> list[Path]:
        folder = self.folder / "results"
        lost = [
            folder / name for name, n in self._lines.items() if n and not (folder / name).exists()
        ]
        if self._file and self._file.exists() and self._file.stat().st_size < self._size:
            lost.append(self._file)
        return lost

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Show plain JSON of the study as a whole in Optuna's; trouble becomes a notice."""
        if self._optuna is not None:
            self._optuna.describe(attributes)

    def _load(self, repair: bool, *, curves: bool = True) -> None:
        parse = _Parser(curves=curves)
        folder = self.folder / "results"
        written = _written(folder)
        for path in sorted(folder.glob("[!.]*.jsonl")):
            try:
                damage = self._load_file(path, parse, repair, *written.get(path.name, ()))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SweeperError(f"cannot read the results {path}: {error.strerror}") from error
            if damage:
                self._set_aside(path, damage, repair)
                written.pop(path.name, None)
            if repair:
                self._lines[path.name] -= len(damage)
        last = max(self._lines, default="")
        for name, (count, begun) in written.items():
            lines = self._lines.get(name, 0)
            if lines < count:
                self._tell(
                    folder / name,
                    f"has {lines} of the {count} lines that were written: the trials of the others "
                    "run again",
                )
            # A driver that was killed later has left more lines in its own file, the last.
            elif self._begun[name] != begun or (lines > count and name != last):
                self._tell(
                    folder / name,
                    f"is not what was written ({count} lines, and now {lines}): what was put in is "
                    "taken as it is",
                )

    def _load_file(
        self, path: Path, parse: _Parser, repair: bool, count: int = 0, _: str = ""
    ) -> dict[int, Exception]:
        """Take in the results in one file; the errors, by the number of the line (from 0).

        `count` lines were there when it was closed. BadInput when another version wrote the file.
        """
        damage: dict[int, Exception] = {}
        self._lines[path.name], content = 0, hashlib.sha256()
        with path.open("rb") as file:
            for number, line in enumerate(file):
                self._lines[path.name] += 1
                if number < count:
                    content.update(line)
                try:
                    result = parse(line)
                except OtherFormat as error:
                    raise _other_version(self.folder, error.format) from error
                except RECORD_ERRORS as error:
                    # A line without an end may still be written, where a driver runs.
                    if repair or line.endswith(b"\n") or live_holder(self.folder) is None:
                        damage[number] = error
                else:
                    if _replaces(result, self._results.get(result.key)):
                        self._results[result.key] = result
        self._begun[path.name] = digest_of(content)
        return damage

    def _set_aside(self, path: Path, damage: Mapping[int, Exception], repair: bool) -> None:
        """Leave the damaged lines of a file out, moved to another one if `repair`; say so."""
        aside = path.with_name(f"{path.name}.damaged")
        if repair:
            with path.open("rb") as file:
                lines = list(file)
            # Kept aside before it is taken out: a kill in between leaves it twice, never nowhere.
            append(aside, b"".join(lines[number] for number in damage))
            with replacing(path) as whole:
                whole.writelines(line for n, line in enumerate(lines) if n not in damage)
        number, error = next(iter(damage.items()))
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        fate = f"was moved to {aside.name}" if repair else "is ignored"
        self._tell(
            path,
            f"is damaged (line {number + 1}{more}: {error}): what cannot be read {fate}, and its "
            "trials will run again",
        )

    def _tell(self, path: Path, what: str) -> None:
        """A notice on a file of results, which every verb gives at its end if not before."""
        self.notices.append(f"the result file {path} {what}")
        note_record(path, f"it {what}")


def _first(path: Path, lines: int) -> bytes:
    return b"".join(path.read_bytes().splitlines(keepends=True)[:lines])


def _written(folder: Path) -> dict[str, tuple[int, str]]:
    """How many lines each file of results had when it was closed, and their sum."""
    kept = try_json(folder / COUNTS).items()
    counts = dict[str, tuple[int, str]]()
    for name, each in kept:
        lines, summed = (each.get("lines"), each.get("sum")) if isinstance(each, dict) else (0, "")
        if isinstance(lines, int) and lines > 0 and isinstance(summed, str):
            counts[name] = lines, summed
    return counts


def check_folder(folder: Path) -> None:
    """BadInput for a study that another version of sweeper wrote, or with what is no file of it."""
    check_contents(folder)
    path = StudyFolder(folder).config
    try:
        data = path.read_bytes()
    except OSError:
        return
    try:
        check_summed(data)
    except ValueError as error:
        note_damage(path, error)
        return
    text = data.decode(errors="replace")
    folder, line = folder.absolute(), _FORMAT_RE.search(text)
    if line and int(line[1]) != FORMAT:
        raise _other_version(folder, int(line[1]))
    if not line:
        note_damage(path, ValueError("it holds no settings"))


def _other_version(folder: Path, version: int) -> BadInput:
    age = "an older" if version < FORMAT else "a newer"
    return BadInput(
        f"the study in {folder} was written by {age} version of sweeper (its format is {version}, "
        f"this version reads {FORMAT}): search anew under another study.name, or use that version"
    )


def read_root(value: object) -> Path:
    """The folder of all studies; ConfigError when `value` is no path."""
    if not isinstance(value, str) or not value:
        raise ConfigError("root", value, "the path of a folder")
    path = Path(expanduser(value))  # a user that there is not keeps his "~"
    if not is_text(str(path.absolute())):
        allowed = f"a path in UTF-8, as records keep it, and {str(path.absolute())!a} is none"
        raise ConfigError("root", ascii(value), allowed)
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ConfigError("root", value, f"the path of a folder, and {existing} is none")
    return path


def check_study_name(name: str) -> str:
    """`name` if a study may be called so; ConfigError when not, or it could leave its folder."""
    if not isinstance(name, str) or not _NAME_RE.fullmatch(name):
        allowed = "at most 100 letters, digits, '.', '_' and '-', not beginning with '.' or '-'"
        raise ConfigError("study.name", name, allowed)
    return name


def latest_study(root: Path) -> str | None:
    """Name of the study in `root` last worked on, or None."""
    changes = []
    for name in studies(root):
        with suppress(FileNotFoundError):
            times = [StudyFolder(root / name).config.stat().st_mtime_ns]
            for path in (root / name).glob("results/*.jsonl"):
                with suppress(FileNotFoundError):
                    times.append(path.stat().st_mtime_ns)
            changes.append((max(times), name))
    return max(changes)[1] if changes else None


def find_study(name: str | None, root: Path) -> str:
    """`name` if that study exists, else the latest; BadInput when there is none."""
    names, last = studies(root), latest_study(root)
    if name is not None and check_study_name(name) in names:
        return name
    folders = (path for path in sorted(root.glob("[!.]*/")) if path.is_dir())
    closed = [path for path in folders if not os.access(path, os.R_OK | os.X_OK)]
    closed = [path for path in closed if name in (None, path.name)]
    if closed and (name is not None or last is None):
        whose = ", ".join(f"{path} is the user {owner_of(path)}'s" for path in closed)
        raise BadInput(f"{whose}, and closed to others")
    if last is None:
        raise BadInput(f"there is no study in {root} yet: run ", Call("search"), " first")
    if name is not None:
        raise BadInput(f"there is no study {name!r} in {root}; {suggest(name, names)}")
    return last


def _replaces(new: Result, old: Result | None) -> bool:
    if old is None:
        return True
    if old.status == "failed":
        return bool(to_json(new) != to_json(old))  # the same failure again is no news
    return old.status == "pruned" and new.status in ("complete", "diverged")


def _to_line(result: Result) -> bytes:
    """`result` as a line of a file; ValueError when it could not be read back."""
    record = to_json(result)
    from_json(Result, record)
    # The sum goes in as the last key, before the brace that is cut here, and is of all before it.
    text = json.dumps(record, allow_nan=False).encode()[:-1]
    return text + b', "sum": "' + sum_of(text).encode() + b'"}\n'


class _Parser:
    """Reads lines; equal losses of all curves share one object, which saves memory."""

    def __init__(self, *, curves: bool) -> None:
        self._curves = curves
        self._losses: dict[float, float] = {}
        self._specs: dict[bytes, TrialSpec] = {}

    def __call__(self, line: bytes) -> Result:
        """The result in a line; one of `RECORD_ERRORS` when it is not to be trusted."""
        # The specification is nearly all of a line but for its curve, ends it, and is that of many.
        # Found by bytes, since `_to_line` writes fields in the order of the classes: in `trial.py`
        # a result's last is `trial`, and a trial's last is `spec`.
        start, sum_at = line.find(b', "spec": {', line.find(b'"trial": {')), _SUM_RE.search(line)
        whole = sum_at is not None and sum_at[1].decode() == sum_of(line[: sum_at.start()])
        tail = line[start : sum_at.start()] if sum_at else b""
        if whole and start > 0 and (spec := self._specs.get(tail)):
            with suppress(*RECORD_ERRORS):
                return self._written(line[:start] + b"}}", spec)
        record = parse_json(line)
        record["curve"] = self._shared(record["curve"])
        result = from_json(Result, record)  # first: another version's lines may sum up otherwise
        if "sum" in record and not whole:
            where = "its sum is not at its end" if sum_at is None else "its sum is of another text"
            raise ValueError(f"it is not what was written: {where}")
        if whole:
            self._specs[tail] = result.trial.spec
        return result

    def _written(self, text: bytes, spec: TrialSpec) -> Result:
        """The result in a line that is as it was written, of a specification that was read before.

        What `from_json` checks was checked when it was written: the line's sum says so.
        """
        if not self._curves:
            # Cut out before the parser sees it: its numbers are most of a line.
            start = text.index(b'"curve": [') + len(b'"curve": [')
            text = text[:start] + text[text.index(b"]", start) :]
        record = json.loads(text)
        if record.pop("format") != FORMAT:
            # No message: the caller then reads the whole line with all checks, which has one.
            raise ValueError
        key, trial = record.pop("key"), record.pop("trial")
        # Shown for people alone; they follow from log2_hps.
        del trial["hps"]
        curve = self._shared(record["curve"])
        record["curve"] = tuple(map(_number, curve) if str in map(type, curve) else curve)
        for name in ("objective", "heldout", "seconds", "finished_at"):
            record[name] = _number(record[name])
        result = Result(trial=Trial(spec=spec, **trial), **record)
        # The value of the `cached_property`: the sum vouches for it, so nothing is digested anew.
        result.trial.__dict__["key"] = key
        return result

    def _shared(self, curve: Sequence[Any]) -> list[Any]:
        return list(map(self._losses.setdefault, curve, curve))


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _next_file(folder: Path) -> Path:
    """A new file, its name after all that exist, damaged ones included."""
    names = [path.name.partition(".")[0] for path in folder.glob("*.jsonl*")]
    last = max((int(name) for name in names if name.isdecimal()), default=0)
    return folder / f"{last + 1:06d}.jsonl"
