"""The durable history of one study: a file a result, mirrored into Optuna's storage."""

from __future__ import annotations

import os
import re
from collections.abc import KeysView
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.files import BROKEN, private_folder, read_json, remove_leftovers, write_json
from sweeper.mirror import Bounds, Mirror, in_order
from sweeper.trial import Result

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class Study:
    """What is known of one study; one driver writes it, which holds the study's `StudyLock`.

    `<folder>/results/<key>.json`, one for each finished trial, is the record. The Optuna study
    of the folder's name only mirrors it, for dashboards: losing it loses nothing. `notices`
    collects what the user should be told; it never holds a password.
    """

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        """Use `open` or `read`."""
        self.folder = folder
        self.name = folder.name
        self.notices: list[str] = []
        self._results: dict[str, Result] = {}
        self._mirror = mirror

    @classmethod
    def open(cls, folder: Path, storage: str | None = None, bounds: Bounds | None = None) -> Study:
        """Open the study in `folder` for its driver: create, clean up and mirror what is missing.

        `storage` is any Optuna RDB URL, by default the SQLite file `study.db` in the folder, and
        `bounds` the ranges the mirror shows until `record` gets others. BadInput when the folder
        or an external storage cannot be used; a damaged `study.db` is set aside and rebuilt.
        """
        folder = folder.absolute()
        check_name(folder.name)
        study = cls(folder)
        try:
            private_folder(folder)
            private_folder(folder / "results")
            remove_leftovers(folder / "results")
            study._load(repair=True)
        except OSError as error:
            raise BadInput(f"no study can be kept in {folder}: {error}") from error
        study._mirror = Mirror(folder, storage, bounds or {}, study._results, study.notices)
        study._mirror.start()
        return study

    @classmethod
    def read(cls, folder: Path) -> Study:
        """The study in `folder` as it is now, without writing anything or touching Optuna.

        BadInput when there is no such folder.
        """
        folder = folder.absolute()
        if not folder.is_dir():
            raise BadInput(f"there is no study in {folder}")
        study = cls(folder)
        study._load(repair=False)
        return study

    def __enter__(self) -> Study:
        """The study itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the mirror's connection."""
        self.close()

    def close(self) -> None:
        """Close the mirror's connection; a later `record` opens it again."""
        if self._mirror:
            self._mirror.close()

    def __contains__(self, key: object) -> bool:
        """Whether the trial of this key has a result, a failure included."""
        return key in self._results

    def __len__(self) -> int:
        """How many results there are."""
        return len(self._results)

    def keys(self) -> KeysView[str]:
        """Keys of all trials that have a result."""
        return self._results.keys()

    def get(self, key: str) -> Result | None:
        """The result of the trial of this key, or None."""
        return self._results.get(key)

    def results(self) -> list[Result]:
        """All results, in the order in which they were finished (then by key)."""
        return in_order(self._results)

    def record(self, result: Result, space_bounds: Bounds | None = None) -> None:
        """Keep `result`: when this returns, it is on the disk and no crash can lose it.

        One result is kept for each trial; only a failure gives way to a newer result. Trouble
        with the mirror becomes a notice. SweeperError when the file cannot be written and
        ValueError for a result that could not be read back; then nothing was recorded.
        """
        if self._mirror is None:
            raise RuntimeError("this study was opened for reading only")
        old = self._results.get(result.key)
        if old and (old.status != "failed" or old.to_json() == result.to_json()):
            return
        record = result.to_json()
        Result.from_json(record)
        path = self.folder / "results" / f"{result.key}.json"
        try:
            write_json(path, record)
        except OSError as error:
            raise SweeperError(
                f"cannot record a result in {path}: {error.strerror or error}. What was recorded "
                "before is safe: make room or give access, then run the same command again"
            ) from error
        self._results[result.key] = result
        self._mirror.add(result, space_bounds or {})

    def _load(self, repair: bool) -> None:
        """Read all result files; those not to be trusted are set aside if `repair`."""
        for path in sorted((self.folder / "results").glob("[!.]*.json")):
            try:
                result = _read_result(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SweeperError(f"cannot read the result {path}: {error.strerror}") from error
            except BROKEN as error:
                self._distrust(path, error, repair)
            else:
                self._results[result.key] = result

    def _distrust(self, path: Path, error: Exception, repair: bool) -> None:
        """Leave a damaged result file out, moved aside if `repair`, and say so."""
        aside = path.with_name(f"{path.name}.damaged")
        fate = f"it was moved to {aside.name}" if repair else "it is ignored"
        if repair:
            os.replace(path, aside)
        self.notices.append(
            f"the result file {path} is damaged ({error}): {fate} and its trial will run again"
        )


def check_name(name: str) -> str:
    """`name` if a study may be called so; ConfigError when not, or it could leave its folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        allowed = "at most 100 letters, digits, '.', '_' and '-', not beginning with '.' or '-'"
        raise ConfigError("study.name", name, allowed)
    return name


def latest(root: Path) -> str | None:
    """Name of the study in `root` last worked on, or None; a study has a `config.yaml`."""
    ages = []
    for config in root.glob("[!.]*/config.yaml"):
        with suppress(FileNotFoundError):
            touched = [config.stat().st_mtime_ns]
            with suppress(FileNotFoundError):
                touched.append((config.parent / "results").stat().st_mtime_ns)
            ages.append((max(touched), config.parent.name))
    return max(ages)[1] if ages else None


def _read_result(path: Path) -> Result:
    """The result in the file at `path`; one of `BROKEN` when it is not to be trusted."""
    result = Result.from_json(read_json(path))
    if path.name != f"{result.key}.json":
        raise ValueError("the name of the file is not the key of its trial")
    return result
