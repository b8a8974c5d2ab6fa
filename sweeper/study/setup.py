"""Which trials of a study belong together: those trained alike, at any size of a ladder."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.files import RECORD_ERRORS, private_folder, sync_folder, try_json, write_json
from sweeper.records import from_json, to_json
from sweeper.search.optuna.url import redact_word
from sweeper.study.folder import StudyFolder
from sweeper.study.study import StudyRecord
from sweeper.trial import Result, TrialSpec
from sweeper.version import __version__

LADDER_PHASE = "validate"
"""The phase of trials that judge a transfer; some of them differ from the study on purpose."""
_LONGEST = 40
"""Longer values are cut in a message."""


@dataclass(frozen=True)
class Trials:
    """A study's results: those of the current setup, and how many there are of others."""

    current: list[Result]
    others: int

    @property
    def searched(self) -> list[Result]:
        """The search's own results: a ladder's are of other sizes, and say nothing of it."""
        return [result for result in self.current if result.trial.phase != LADDER_PHASE]


def read_setup(folder: Path) -> TrialSpec | None:
    """What the study in `folder` was last told to train; None where nothing legible says it."""
    try:
        return from_json(TrialSpec, try_json(StudyFolder(folder).setup))
    except RECORD_ERRORS:
        return None


def write_setup(folder: Path, spec: TrialSpec) -> list[str]:
    """Keep what the study in `folder` trains from here on; a sentence for what was moved.

    What was found out of another setup is set aside, so that nothing that reads the study takes it
    for what holds of this one. What was found out of this one earlier comes back. The setup is
    written in between: a driver that is killed goes on from there.
    """
    study, notes = StudyFolder(folder), list[str]()
    aside = study.set_aside
    old = read_setup(folder) or _last_searched(StudyRecord.read(folder, curves=False).results())
    changed = changes(old, spec) if old is not None else {}
    # An order that a kill at any line leaves mendable: the conclusion goes first, since it would be
    # taken for the new setup's; findings move next; the new setup is named once they are away.
    if changed:  # its conclusion is drawn anew from its trials, should it come back
        study.search.unlink(missing_ok=True)
    if old is not None and changed and _move(folder, place := aside / old.digest[:12], over=True):
        what = "; ".join(_sentence(key, *values) for key, values in [*changed.items()][:3])
        notes.append(f"plans and verdicts of the setup before ({what}) are now in {place}")
    write_json(study.setup, to_json(spec))
    if (place := aside / spec.digest[:12]).is_dir() and _move(place, folder, over=False):
        notes.append("plans and verdicts that this setup had before are back in place")
    return notes


def _move(source: Path, target: Path, *, over: bool) -> bool:
    """Move the findings from one folder to another, `over` what is there; whether there were any.

    Both have some only after a driver was killed: those in the study's folder are the newer ones.
    """
    names = StudyFolder.FINDINGS
    taken = [name for name in names if (target / name).is_dir()]
    moved = [name for name in names if (source / name).is_dir() and (over or name not in taken)]
    for name in moved:
        private_folder(target)
        if name in taken:
            shutil.rmtree(target / name)
        (source / name).rename(target / name)
        sync_folder(target)
    return bool(moved)


def trials_of(study: StudyRecord) -> Trials:
    """The study's results of its current setup, in the order in which they were finished."""
    results = study.results()
    setup = read_setup(study.folder) or _last_searched(results)
    if setup is None:
        return Trials(results, 0)
    alike = {spec: _alike(spec, setup) for spec in {result.trial.spec for result in results}}
    # A ladder over batch or steps has trials whose training differs from the setup's on purpose.
    # But at the length and the batch of an earlier search a ladder belongs to that search.
    earlier = {spec.train for spec in _searched(results) if alike[spec]} - {setup.train}
    current = [
        result
        for result in results
        if result.trial.spec == setup
        or (
            result.trial.phase == LADDER_PHASE
            and alike[result.trial.spec]
            and result.trial.spec.train not in earlier
        )
    ]
    return Trials(current, len(results) - len(current))


def check_setup(folder: Path, spec: TrialSpec) -> None:
    """BadInput where the study in `folder` has trials, and others than a search of `spec` makes."""
    kept = read_setup(folder)
    if kept == spec or not StudyFolder(folder).results.is_dir():
        return
    # What failed is tried again anyhow: to mend a command is no other study.
    study = StudyRecord.read(folder, curves=False)
    results = [result for result in study.results() if result.status != "failed"]
    kept = kept or _last_searched(results)
    if not results or kept is None or not (changed := changes(kept, spec)):
        return
    sentences = [_sentence(key, old, new) for key, (old, new) in changed.items()]
    more = f"; and {len(sentences) - 6} more" if len(sentences) > 6 else ""
    raise BadInput(
        f"the study {folder.name!r} has {len(results)} trials of another setup: "
        f"{'; '.join(sentences[:6])}{more}. Choose another study with ",
        Keyword("study", ...),
        ", or add ",
        Keyword("new_setup"),
        " to go on in this one: its trials so far are kept, and count no more",
    )


def changes(old: TrialSpec, new: TrialSpec) -> dict[str, tuple[Any, Any]]:
    """What differs between two setups, by the key that sets it: the old value and the new."""
    before, after = (dict(_settings(to_json(spec))) for spec in (old, new))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: (before.get(key), after.get(key)) for key in keys}


def _settings(record: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Every value of a specification, under the name that it has in the configuration."""
    for key, value in record.items():
        if key in ("width", "depth"):
            yield f"model.{key}", value
        elif key in ("base_width", "base_depth"):
            continue  # of a search they are the width and the depth
        elif key in ("parameterization", "model", "optimizer", "fp8"):
            yield key, value["name"]
            yield from _leaves(value["arguments"], key)
        else:
            yield from _leaves(value, key)


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", value


def _sentence(key: str, old: object, new: object) -> str:
    """What became of one key; a digest tells nothing by itself."""
    content = key.removeprefix("runner.code.").removeprefix("runner.modules.")
    if content != key or key == "data.digest":
        return f"the content of {'data' if content == key else content} changed"
    return f"{key} was {_short(old)}, is {_short(new)}"


def _short(value: object) -> str:
    text = "not set" if value is None else str(value)
    if isinstance(value, list | tuple):
        text = " ".join(map(str, value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _last_searched(results: Iterable[Result]) -> TrialSpec | None:
    searched = _searched(results)
    return searched[-1] if searched else None


def _searched(results: Iterable[Result]) -> list[TrialSpec]:
    """Specifications of all trials of searches, in order: a ladder's are of sizes beside it."""
    return [result.trial.spec for result in results if result.trial.phase != LADDER_PHASE]


def _alike(spec: TrialSpec, setup: TrialSpec) -> bool:
    """Whether trials of `spec` are `setup`'s but for their size, batch and steps: a ladder's."""
    same: dict[str, Any] = {"batch_size": setup.train.batch_size, "steps": setup.train.steps}
    # With a stable part the warm-up has the base's steps, another share of each horizon.
    if spec.train.span.warmup == min(setup.train.span.warmup, spec.train.steps):
        same["warmup"] = setup.train.warmup
    try:
        train = replace(spec.train, **same)
    except ConfigError:  # other settings of the training do not go with these
        return False
    return replace(spec, width=setup.width, depth=setup.depth, train=train) == setup


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Trials that failed for one reason: how many, and the last one's error."""

    count: int
    error: str


def failures_of(results: Iterable[Result], runner: Mapping[str, Any]) -> list[Failure]:
    """Why trials of this `runner` failed.

    Those of another command, or of other code, are never tried again.
    """
    tried = [r.error for r in results if r.status == "failed" and r.trial.spec.runner == runner]
    # Digests and numbers are each trial's own: errors that differ in them alone are of one kind.
    kinds = [re.sub(r"[0-9a-f]{8,}|[\d.]+(e-?\d+)?", "#", error) for error in tried]
    last = dict(zip(kinds, tried, strict=True))
    return [Failure(count=count, error=last[kind]) for kind, count in Counter(kinds).most_common()]


PACKAGES = ("torch", "numpy", "optuna", "hydra-core")


def provenance() -> dict[str, Any]:
    """Versions of what computes, the machine, the git commit worked in, the command."""
    return {
        "sweeper": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "machine": f"{platform.node()}, {platform.system()} {platform.machine()}",
        "git": git_commit(Path.cwd()),
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


_ASKED: ContextVar[str] = ContextVar("asked", default="")


@contextmanager
def asked(arguments: Sequence[str]) -> Iterator[None]:
    """What is recorded in here was asked for by the words of this command line."""
    token = _ASKED.set(shlex.join(map(redact_word, arguments)))
    try:
        yield
    finally:
        _ASKED.reset(token)


def command_line() -> str:
    """The command that a shell takes to ask for the same again, without passwords."""
    return _ASKED.get()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def git_commit(folder: Path) -> str | None:
    """The commit of the repository that `folder` lies in, "+changes" if it has any.

    It is asked once: what runs was read then, and a search says it after every batch.
    """

    def git(*arguments: str) -> str:
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 10, "check": True}
        return str(subprocess.run(["git", *arguments], cwd=folder, **how).stdout).strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None
