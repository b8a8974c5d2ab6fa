"""PostgreSQL as the study's storage: a real server, one that is not there, one that is lost."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import optuna
import pytest

from tests.cli.driver import Answer, assert_refused
from tests.faults.harness import SLOW, WORDS, Harness, Outcomes, assert_whole, outcomes, recorded
from tests.faults.postgres import PASSWORD, Server, free_port, programs
from tests.waiting import until

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    place = programs()
    with TemporaryDirectory(dir="/tmp", prefix="postgres-") as folder:
        made = Server(folder=Path(folder), port=free_port(), bin=place)
        made.create()
        yield made
        with suppress(AssertionError):
            made.stop()


def mirrored(server: Server) -> list[str]:
    storage = optuna.storages.RDBStorage(server.url())
    try:
        trials = optuna.load_study(study_name="a", storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()
    return sorted(trial.user_attrs["key"] for trial in trials if trial.state.name == "COMPLETE")


def emptied(server: Server) -> None:
    storage = optuna.storages.RDBStorage(server.url())
    with suppress(KeyError):
        storage.delete_study(storage.get_study_id_from_name("a"))
    storage.remove_session()
    storage.engine.dispose()


def no_password(harness: Harness, *answers: Answer) -> None:
    for answer in answers:
        assert PASSWORD not in answer.out + answer.err
    for path in harness.folder.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


def test_a_server_mirrors_the_study_and_its_loss_loses_nothing(
    harness: Harness, expected: Outcomes, server: Server
) -> None:
    emptied(server)
    storage = f"study.storage={server.url()}"
    driver = harness.start("search", *SLOW, storage)
    until(lambda: recorded(harness.study) >= 2)
    server.stop()
    try:
        answer = driver.wait()
    finally:
        server.start()
    assert answer.code == 0, answer
    assert answer.out.count("Note: Optuna's study of the results, ") == 1
    assert "me:***@127.0.0.1" in answer.out and "is behind" in answer.out
    assert outcomes(harness.study) == expected and 0 < len(mirrored(server)) < len(expected)
    again = harness.run("search", *WORDS, storage)
    notes = [line for line in again.out.splitlines() if line.startswith("Note: ")]
    note = "Note: the study was searched with other values of data._target_, data.fault"
    assert again.code == 0 and len(notes) == 1 and notes[0].startswith(note)
    assert mirrored(server) == sorted(expected)
    assert_whole(harness, expected, mirrored=False)
    assert not (harness.study / "study.journal").exists()
    no_password(harness, answer, again)


def test_a_server_that_cannot_be_used_leaves_no_study(harness: Harness, server: Server) -> None:
    gone = harness.run("search", *WORDS, f"study.storage={server.url(port=free_port())}")
    assert_refused(gone, "me:***@127.0.0.1:", "cannot be used", "refused")
    wrong = harness.run("search", *WORDS, f"study.storage={server.url(password='w' + PASSWORD)}")
    assert_refused(wrong, "me:***@127.0.0.1:", "cannot be used", "password authentication failed")
    assert not harness.study.exists()
    no_password(harness, gone, wrong)
