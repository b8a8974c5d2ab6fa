import json
from pathlib import Path

import pytest

from sweeper.errors import BadInput
from sweeper.files import write_json
from sweeper.study.lock import StudyLock, live_holder
from sweeper.verbs import status as verb
from sweeper.verbs.cancel import cancel
from sweeper.verbs.requests import CancelRequest, StatusRequest
from sweeper.verbs.status import StatusAnswer, status
from tests.cli.driver import rewrite_results
from tests.verbs.watching import Kept


def progress(folder: Path, **values: object) -> None:
    """What a running driver writes now."""
    record = {"job": "search", "phase": "eta", "done": 2, "total": 9, "left": 75.0, "over": False}
    driver = live_holder(folder)
    record |= {"driver": driver.started} if driver else {}
    write_json(folder / "progress.json", {**record, **values})


def asked(**keywords: object) -> StatusAnswer:
    return status(StatusRequest(**keywords), Kept())  # type: ignore[arg-type]


def test_a_driver_s_progress_is_its_own(study: Path) -> None:
    with StudyLock(study):
        answer = asked()
        assert answer.runs and answer.progress is None, "the progress is an earlier driver's"
        progress(study, phase="validate")
        answer = asked()
        assert answer.progress is not None and answer.progress.phase == "validate"
        assert answer.stopped is None
    assert (stopped := asked().stopped) is not None and stopped.done == 2


def test_what_was_lost_is_seen(study: Path) -> None:
    rewrite_results(study, lambda lines: lines[1:])
    assert asked().lacks


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("progress.json", {"jobs": [{"id": 5}]}, "jobs[0].id="),
        ("search.json", {"objective": "low"}, "objective="),
    ],
)
def test_a_damaged_record_is_named_by_its_field(
    study: Path, name: str, change: dict[str, object], field: str
) -> None:
    with StudyLock(study):
        progress(study)
        write_json(study / name, json.loads((study / name).read_text()) | change)
        (notice,) = asked().notices
        assert f"{name} cannot be read ({field}" in notice
        assert cancel(CancelRequest(), Kept()).driver is not None


def test_a_watch_ends_with_the_driver(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, naps, watcher = StudyLock(study), list[float](), Kept()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            lock.__exit__(None, None, None)

    with lock:
        monkeypatch.setattr(verb.time, "sleep", nap)
        progress(study)
        answer = status(StatusRequest(watch=True), watcher)
    assert answer.driver is None and len(naps) == 3
    assert [news for _, news in watcher.looks] == [True, False, False]


def test_a_watch_at_a_terminal_waits_for_a_driver_that_was_just_typed(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, naps, watcher = StudyLock(study), list[float](), Kept(is_live=True)

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            study.with_name("later").rename(study)
        if len(naps) == 4:
            lock.__enter__()
        if len(naps) == 6:
            lock.__exit__(None, None, None)

    study.rename(study.with_name("later"))
    monkeypatch.setattr(verb.time, "sleep", nap)
    status(StatusRequest(name=("a",), watch=True), watcher)
    assert naps == [0.5, 0.5, 2, 2, 2, 2]
    assert len(watcher.remarks) == 1
    assert [look.waits for look, _ in watcher.looks] == [True, True, False, False]
    monkeypatch.setattr(verb, "STARTS_WITHIN", 0.0)
    with pytest.raises(BadInput, match="there is no study 'other'"):
        status(StatusRequest(name=("other",), watch=True), watcher)
