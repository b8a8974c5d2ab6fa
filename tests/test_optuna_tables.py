"""What is written into Optuna's tables is what Optuna itself would have written."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from sweeper.optuna_tables import MARK, add_trials, stored_marks

RANGE = optuna.distributions.FloatDistribution(2.0**-8, 2.0**8, log=True)
moments = st.datetimes(datetime(2001, 1, 1), datetime(2030, 1, 1))
attributes = st.text() | st.integers(-(2**31), 2**31) | st.floats(allow_nan=False) | st.none()


@st.composite
def trials(draw: st.DrawFn) -> Any:
    """An ended trial as the mirror makes them."""
    state = draw(st.sampled_from([TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]))
    value = draw(st.floats(allow_nan=False, width=32) | st.just(math.inf))
    hps = draw(st.dictionaries(st.sampled_from("abcd"), st.floats(-8, 8).map(lambda x: 2.0**x)))
    trial = optuna.trial.create_trial(
        state=state,
        value=None if state is TrialState.FAIL else value,
        params=hps,
        distributions=dict.fromkeys(hps, RANGE),
        user_attrs=draw(st.dictionaries(st.text(min_size=1, max_size=20), attributes, max_size=4)),
    )
    trial.datetime_complete = draw(moments)
    trial.datetime_start = trial.datetime_complete - timedelta(seconds=draw(st.floats(0, 1e6)))
    return trial


@contextmanager
def storages() -> Iterator[tuple[Any, Any]]:
    """Two storages with an empty study each, and another study before it."""
    both = [optuna.storages.RDBStorage("sqlite:///:memory:") for _ in "ab"]
    try:
        for storage in both:
            for name in ("other", "mine"):
                optuna.create_study(storage=storage, study_name=name)
        yield both[0], both[1]
    finally:
        for storage in both:
            storage.remove_session()
            storage.engine.dispose()


def add(storage: Any, name: str, added: list[Any]) -> None:
    study = storage.get_study_id_from_name(name)
    with storage.scoped_session() as session, session.begin():
        add_trials(session, study, added)


def shown(storage: Any, name: str) -> list[Any]:
    return list(storage.get_all_trials(storage.get_study_id_from_name(name)))


@settings(max_examples=20, deadline=None)
@given(st.lists(trials(), max_size=4), st.lists(trials(), max_size=3))
def test_as_optuna_would_have_written_it(first: list[Any], second: list[Any]) -> None:
    with storages() as (ours, theirs):
        for name, added in (("mine", first), ("other", second), ("mine", second)):
            add(ours, name, added)
            optuna.load_study(storage=theirs, study_name=name).add_trials(added)
        for name in ("mine", "other"):
            assert shown(ours, name) == shown(theirs, name)
            assert [t.number for t in shown(ours, name)] == list(range(len(shown(ours, name))))
            assert repr(shown(ours, name)) == repr(shown(theirs, name))


def test_optuna_goes_on_where_we_ended() -> None:
    done = optuna.trial.create_trial(value=1.0, params={"a": 1.0}, distributions={"a": RANGE})
    with storages() as (storage, _):
        add(storage, "mine", [done, done])
        study = optuna.load_study(storage=storage, study_name="mine")
        study.add_trial(done)
        add(storage, "mine", [done])
        assert [trial.number for trial in study.trials] == [0, 1, 2, 3]
        assert study.best_value == 1.0


def test_all_or_none() -> None:
    done = optuna.trial.create_trial(value=1.0)
    bad = optuna.trial.create_trial(value=1.0, user_attrs={"a": object()})
    with storages() as (storage, _):
        with pytest.raises(TypeError):
            add(storage, "mine", [done, bad])
        assert shown(storage, "mine") == []
        add(storage, "mine", [done])
        assert len(shown(storage, "mine")) == 1


def test_marks_are_those_of_the_study_as_json() -> None:
    marks = {"key": "k", "status": "failed", "finished_at": 1.5}
    assert set(marks) == set(MARK)
    mine = optuna.trial.create_trial(value=1.0, user_attrs=marks | {"more": 1})
    other = optuna.trial.create_trial(value=1.0, user_attrs=marks | {"key": "else"})
    with storages() as (storage, _):
        add(storage, "mine", [mine, optuna.trial.create_trial(value=1.0)])
        add(storage, "other", [other])
        study = storage.get_study_id_from_name("mine")
        with storage.scoped_session() as session:
            found = list(stored_marks(session, study))
    assert found == [('"k"', '"failed"', "1.5")]
