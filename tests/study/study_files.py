import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from sweeper.records import from_json
from sweeper.trial import Log2Hps, Result, Trial
from tests.specs import spec_of

SPEC = spec_of({"model": {"width": 64, "depth": 2}})


def make(number: int, status: str = "complete", **changes: Any) -> Result:
    trial = Trial(
        spec=SPEC,
        log2_hps=Log2Hps({"eta": number / 4 - 3, "alpha_attn": 1.0}),
        seed=number,
        phase="random",
    )
    objective = {"diverged": math.inf, "failed": math.nan}.get(status, 3.0 + number)
    fields = {"heldout": objective, "seconds": 2.0, "finished_at": 1e9 + number} | changes
    return Result(trial=trial, status=status, objective=objective, **fields)  # type: ignore[arg-type]


def logged(number: int, **changes: Any) -> Result:
    """A trial as a log gets it, with ten steps in four stretches."""
    small = spec_of({"model": {"width": 8, "depth": 2}})
    phase = "lines" if number % 2 else "eta"
    trial = Trial(spec=small, log2_hps={"eta": float(number)}, seed=1, phase=phase)
    told = {"trial": trial, "status": "complete", "objective": 2.5, "seconds": 1.5}
    told |= {"curve": (3.0, 2.75, 2.5, 2.25), "steps": 10, "finished_at": 7.0}
    return Result(**(told | changes))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "results").glob("*.jsonl"))


def filed(folder: Path) -> dict[str, tuple[str, float]]:
    """What the record says, by key: status and objective (failed ones as None)."""
    outcomes = {}
    for line in "".join(path.read_text() for path in files(folder)).splitlines():
        result = from_json(Result, json.loads(line))
        value = None if result.status == "failed" else result.objective
        outcomes[result.key] = (result.status, value)  # what gives way comes first
    return outcomes


def mirrored(folder: Path, url: str | None = None) -> dict[str, tuple[str, float]]:
    """What Optuna says, read as any dashboard would read it; the newest trial of a key counts."""
    trials = journal_trials(folder) if url is None else in_database(url, folder.name)
    assert all(t.state.is_finished() for t in trials)
    return {t.user_attrs["key"]: (status_of(t), t.value) for t in trials}


def status_of(trial: FrozenTrial) -> str:
    if trial.state is TrialState.COMPLETE:
        return "complete" if math.isfinite(trial.value or 0.0) else "diverged"
    return {TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}[trial.state]


def loaded(folder: Path) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    return optuna.load_study(study_name=folder.name, storage=storage)


def journal_trials(folder: Path) -> list[FrozenTrial]:
    return loaded(folder).trials


def in_database(url: str, name: str) -> list[FrozenTrial]:
    storage = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=name, storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


def refuse(code: int) -> Callable[..., Any]:
    def refused(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refused


def rubbish(journal: Path) -> None:
    journal.write_bytes(os.urandom(5000) + b"\n")
