"""Optuna's dashboard shows the trials of a study, and keeps what is written in it."""

from __future__ import annotations

import json
import sys
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from sweeper.study.study import Study
from tests.study.study_files import make

ANSWER = {"best": {"eta": 0.25}, "loss": 3.5, "loss_error": 0.1, "loss_of": "3 fresh seeds"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "a"


def storage_of(folder: Path) -> BaseStorage:
    return JournalStorage(JournalFileBackend(str(folder / "study.journal")))


def loaded(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name="a", storage=storage_of(folder))


def in_dashboard(folder: Path) -> dict[str, Any]:
    """The study as the dashboard's own server sends it to its page."""
    dashboard = pytest.importorskip("optuna_dashboard")
    sent: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        application = dashboard.wsgi(storage_of(folder))
        number = storage_of(folder).get_study_id_from_name("a")
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
    page: dict[str, Any] = json.loads(body)
    return page


def test_the_dashboard_shows_trials_and_the_answer(folder: Path) -> None:
    with Study.open(folder) as study:
        study.propose([make(0).trial, make(1).trial, make(2).trial], {})
        study.record([make(0), make(1, "diverged")])
        study.describe({**ANSWER, "loss": 99.0})
        study.describe(ANSWER)
        assert study.notices == []
    page = in_dashboard(folder)
    assert [trial["state"] for trial in page["trials"]] == ["Complete", "Complete", "Fail"]
    assert [trial.get("values") for trial in page["trials"]][:2] == [[3.0], ["inf"]]
    assert {p["name"] for p in page["trials"][0]["params"]} == {"eta", "alpha_attn"}
    assert loaded(folder).user_attrs == ANSWER


def test_notes_of_a_dashboard_are_kept(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record([make(0)])
        storage = storage_of(folder)
        number = storage.get_study_id_from_name("a")
        storage.set_study_system_attr(number, "dashboard:note_str:0", "look here")
        loaded(folder).set_user_attr("mine", 7)
        study.record([make(1)])
        study.describe(ANSWER)
    storage = storage_of(folder)
    number = storage.get_study_id_from_name("a")
    assert storage.get_study_system_attrs(number)["dashboard:note_str:0"] == "look here"
    assert loaded(folder).user_attrs == {**ANSWER, "mine": 7}
    assert len(loaded(folder).trials) == 2
