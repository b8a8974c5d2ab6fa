"""A pack for another process: plain JSON in a folder of its own, and what came of it.

```
jobs/<id>/job.json             what to train: written by the driver before anything runs
          result-<attempt>.json   what came of an attempt, whole or not there
```

Files are written aside, synced (where the job should survive the machine) and renamed. Nothing is
ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from sweeper.data.corpus import Corpus
from sweeper.errors import SweeperError
from sweeper.files import BROKEN, private_folder, read_json, replacing, write_json
from sweeper.launch.packs import run_pack
from sweeper.plugin import build
from sweeper.search.prune import Pruner
from sweeper.training.pack import Pack
from sweeper.training.train import Execution, Reporter
from sweeper.trial import FORMAT, Result, Trial, digest, encode


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a job's attempt: results, and packs of trials to be tried in its place.

    `attempt` is its number from 0; `notices` is what the user should be told.
    """

    attempt: int
    results: tuple[Result, ...]
    back: tuple[tuple[Trial, ...], ...] = ()
    notices: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "attempt": self.attempt,
            "results": [result.to_json() for result in self.results],
            "back": [[trial.to_json() for trial in part] for part in self.back],
            "notices": list(self.notices),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Outcome:
        """Inverse of `to_json`; one of `files.BROKEN` when it is not to be trusted."""
        return cls(
            attempt=int(record["attempt"]),
            results=tuple(Result.from_json(result) for result in record["results"]),
            back=tuple(map(_trials, record["back"])),
            notices=tuple(map(str, record["notices"])),
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pack, how to run it, and what may stop its trials early."""

    pack: Pack
    execution: Execution
    pruner: Pruner | None = None

    @property
    def id(self) -> str:
        """Name of the job's folder: it follows from the trials and their order."""
        return digest([trial.key for trial in self.pack.trials])[:24]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; TypeError for a corpus that is no dataclass."""
        return {
            "format": FORMAT,
            "trials": [trial.to_json() for trial in self.pack.trials],
            "corpus": describe(self.pack.corpus),
            "execution": _plain(self.execution),
            "pruner": None if self.pruner is None else self.pruner.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Job:
        """Inverse of `to_json`; one of `files.BROKEN`, or ConfigError, for anything else."""
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}, and this sweeper reads {FORMAT}")
        execution = dict(record["execution"])
        if execution["checkpoints"] is not None:
            execution["checkpoints"] = Path(execution["checkpoints"])
        pruner = record["pruner"]
        return cls(
            pack=Pack(trials=_trials(record["trials"]), corpus=build(record["corpus"])),
            execution=Execution(**execution),
            pruner=None if pruner is None else Pruner.from_json(pruner),
        )


def describe(corpus: Corpus) -> dict[str, Any]:
    """A corpus as a config that `plugin.build` makes it from again."""
    if not is_dataclass(corpus):
        raise TypeError(f"{type(corpus).__name__} is no dataclass: it cannot go to other processes")
    kind = type(corpus)
    return {"_target_": f"{kind.__module__}.{kind.__qualname__}", **_plain(corpus)}


def _plain(record: Any) -> dict[str, Any]:
    """The fields of a dataclass, paths as text."""
    found = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: str(value) if isinstance(value, Path) else encode(value)
        for name, value in found.items()
    }


def write_job(folder: Path, job: Job, *, sync: bool = True) -> Path:
    """The job's own folder in `folder`, with its `job.json`; OSError when it cannot be written.

    Without `sync` it may be lost when the whole machine fails, but no worker waits for the disk.
    """
    private_folder(folder)
    own = folder / job.id
    private_folder(own)
    _write(own / "job.json", job.to_json(), sync)
    return own


def _write(path: Path, record: dict[str, Any], sync: bool) -> None:
    if sync:
        write_json(path, record)
        return
    with replacing(path, sync=False) as file:
        file.write(json.dumps(encode(record), allow_nan=False).encode())


def read_job(own: Path) -> Job:
    """The job in the folder `own`; SweeperError when there is none that can be trusted."""
    try:
        return Job.from_json(read_json(own / "job.json"))
    except (OSError, *BROKEN) as error:
        raise SweeperError(f"there is no job in {own}: {error}") from error


def trials_of(own: Path) -> tuple[Trial, ...]:
    """The trials of the job in the folder `own`; none when it cannot be read: nobody can train it.

    Its corpus is not built.
    """
    try:
        found = _trials(read_json(own / "job.json")["trials"])
        return found if all(trial.key for trial in found) else ()  # damaged values have no key
    except (OSError, *BROKEN):
        return ()


def _trials(records: Any) -> tuple[Trial, ...]:
    return tuple(map(Trial.from_json, records))


def run_job(
    own: Path,
    attempt: int,
    reporter: Callable[[Callable[[str], None]], Reporter] = lambda tell: Reporter(tell=tell),
    *,
    sync: bool = True,
) -> None:
    """Train the job in `own` and write what came of it; `train.Left` when it was told to leave.

    `reporter` gets a function that keeps a sentence for the user; `sync` as in `write_job`.
    """
    job, notices = read_job(own), list[str]()
    results, back = run_pack(job.pack, job.execution, reporter(notices.append), job.pruner)
    outcome = Outcome(
        attempt=attempt, results=tuple(results), back=tuple(back), notices=tuple(notices)
    )
    _write(own / f"result-{attempt}.json", outcome.to_json(), sync)


def outcome_of(own: Path) -> Outcome | None:
    """What came of the job in `own`, by its newest attempt that left a whole result; or None.

    An older attempt may finish after a newer one was begun, on a node that was thought lost: the
    newest counts, so that what is read does not depend on when.
    """
    found = []
    for path in own.glob("result-*.json"):
        try:
            found.append(Outcome.from_json(read_json(path)))
        except (OSError, *BROKEN):
            continue
    return max(found, key=lambda outcome: outcome.attempt, default=None)
