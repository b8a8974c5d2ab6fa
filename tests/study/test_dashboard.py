"""What Optuna and its dashboard call the best trial is the search's answer."""

from __future__ import annotations

import json
import math
import sys
import warnings
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from sweeper.search.fresh import FINAL, FINAL_SEED
from sweeper.study.study import Study
from sweeper.trial import Log2Hps, Result
from tests.study.study_files import make

BEST = {"eta": 2.0**-2, "alpha_attn": 2.0}
LOSSES = (2.92, 2.93, 2.94)


def of(eta: float, loss: float, seed: int = 0, phase: str = "eta", **changes: Any) -> Result:
    result = make(0, heldout=loss)
    hps = Log2Hps({**result.trial.log2_hps, "eta": eta})
    trial = replace(result.trial, log2_hps=hps, seed=seed, phase=phase)
    at = 1e9 + 10 * eta + seed % 997
    return replace(result, trial=trial, objective=loss, finished_at=at, **changes)


RUNS = [
    *(of(eta, 3.0 + abs(eta) / 10) for eta in (-5.0, -3.0, -1.0)),
    of(-4.5, 2.7856),  # the luckiest run, of another configuration
    of(-2.0, 2.9),  # a lucky run of the answer's own
    of(-1.5, mean(LOSSES)),  # as good as the answer, by chance
    *(of(-2.0, loss, FINAL_SEED + i, FINAL) for i, loss in enumerate(LOSSES)),
]


def described(losses: tuple[float, ...] = LOSSES) -> dict[str, Any]:
    error = stdev(losses) / math.sqrt(len(losses))
    return {"best": BEST, "loss": mean(losses), "loss_error": error, "loss_of": "3 fresh seeds"}


# Where it lies is the affair of `test_optuna_copy_databases.py`.
@pytest.fixture(params=["journal", pytest.param("database", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "journal" else f"sqlite:///{tmp_path / 'far.db'}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "a"


def storage_of(folder: Path, url: str | None) -> BaseStorage:
    if url is not None:
        return RDBStorage(url)
    return JournalStorage(JournalFileBackend(str(folder / "study.journal")))


def loaded(folder: Path, url: str | None) -> optuna.Study:
    return optuna.load_study(study_name="a", storage=storage_of(folder, url))


def in_dashboard(folder: Path, url: str | None) -> dict[str, Any]:
    """The study as the dashboard's own server sends it to its page."""
    dashboard = pytest.importorskip("optuna_dashboard")
    sent: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        application = dashboard.wsgi(storage_of(folder, url))
        number = storage_of(folder, url).get_study_id_from_name("a")
        environment = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": f"/api/studies/{number}",
            "QUERY_STRING": "after=0",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.input": BytesIO(),
            "wsgi.errors": sys.stderr,
            "wsgi.url_scheme": "http",
        }
        body = b"".join(application(environment, lambda status, *_: sent.append(status)))
    assert sent[0].startswith("200")
    shown: dict[str, Any] = json.loads(body)
    return shown


def test_the_best_trial_is_the_answer(folder: Path, url: str | None) -> None:
    with Study.open(folder, url) as study:
        study.record(RUNS)
        assert loaded(folder, url).best_value == 2.7856, "while nothing is concluded"
        study.describe(described())
        assert study.notices == []
    shown = loaded(folder, url)
    assert shown.best_params == BEST and shown.best_value == mean(LOSSES)
    best = shown.best_trial
    assert best.intermediate_values == dict(enumerate(LOSSES))
    assert best.user_attrs["loss_error"] == described()["loss_error"]
    assert best.user_attrs["seeds"] == [FINAL_SEED, FINAL_SEED + 1, FINAL_SEED + 2]
    # All runs are still there, with their losses.
    keys = [trial.user_attrs["key"] for trial in shown.trials]
    assert len(set(keys)) == len(keys) == len(RUNS) + 1
    losses = {trial.user_attrs["key"]: trial.value for trial in shown.trials}
    assert all(losses[run.key] == run.objective for run in RUNS)
    pruned = [trial for trial in shown.trials if "shown_as_pruned" in trial.user_attrs]
    assert {trial.value for trial in pruned} == {2.7856, 2.9, 2.92, 2.93}
    assert all(trial.user_attrs["status"] == "complete" for trial in pruned)


def test_the_dashboard_shows_it(folder: Path, url: str | None) -> None:
    with Study.open(folder, url) as study:
        study.record(RUNS)
        study.describe(described())
    (best,) = in_dashboard(folder, url)["best_trials"]
    assert {p["name"]: p["param_internal_value"] for p in best["params"]} == BEST
    assert best["values"] == [mean(LOSSES)]
    assert [value["value"] for value in best["intermediate_values"]] == list(LOSSES)


def test_it_stays_the_best_whatever_is_added(folder: Path, url: str | None) -> None:
    """A ladder's larger models reach lower losses, and commands open the study again."""
    with Study.open(folder, url) as study:
        study.record(RUNS)
        study.describe(described())
    with Study.open(folder, url) as study:
        study.record([of(-2.5, 1.0, phase="validate"), of(-2.75, 9.0, phase="validate")])
        assert study.notices == []
    shown = loaded(folder, url)
    assert shown.best_value == mean(LOSSES) and len(shown.trials) == len(RUNS) + 3


def test_a_study_that_is_opened_again_is_not_written_again(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record(RUNS)
        study.describe(described())
    before = (folder / "study.journal").read_bytes()
    with Study.open(folder) as study:
        study.describe(described())
        assert study.notices == []
    assert (folder / "study.journal").read_bytes() == before


def test_another_answer_takes_its_place_and_none_leaves_none(folder: Path, url: str | None) -> None:
    with Study.open(folder, url) as study:
        study.record(RUNS)
        study.describe(described())
        others = tuple(loss - 0.1 for loss in LOSSES)
        new = [of(-4.5, loss, FINAL_SEED + i, FINAL) for i, loss in enumerate(others)]
        study.record(new)
        study.describe({**described(others), "best": {**BEST, "eta": 2.0**-4.5}})
        shown = loaded(folder, url)
        assert (shown.best_value, shown.best_params["eta"]) == (mean(others), 2.0**-4.5)
        assert len(shown.trials) == len(RUNS) + 4
        study.describe(dict.fromkeys(described()))
        shown = loaded(folder, url)
        assert shown.best_value == 2.7856 and len(shown.trials) == len(RUNS) + 3


def test_notes_of_a_dashboard_are_kept(folder: Path, url: str | None) -> None:
    with Study.open(folder, url) as study:
        study.record(RUNS)
        storage = storage_of(folder, url)
        number = storage.get_study_id_from_name("a")
        storage.set_study_system_attr(number, "dashboard:note_str:0", "look here")
        loaded(folder, url).set_user_attr("mine", 7)
        study.describe(described())
    storage = storage_of(folder, url)
    number = storage.get_study_id_from_name("a")
    assert storage.get_study_system_attrs(number)["dashboard:note_str:0"] == "look here"
    assert loaded(folder, url).user_attrs["mine"] == 7


def test_a_search_without_a_loss_has_no_best_of_its_own(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record([of(-2.0, math.inf, status="diverged")])
        study.describe({**described(), "loss": "inf"})
        assert study.notices == []
    assert len(loaded(folder, None).trials) == 1


def test_optunas_own_pictures_have_the_answer_for_their_best(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record(RUNS)
        study.describe(described())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are experimental
        axes = optuna.visualization.matplotlib.plot_optimization_history(loaded(folder, None))
    (line,) = axes.get_lines()
    assert min(line.get_ydata()) == mean(LOSSES)
