import logging
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import BadInput
from sweeper.search.optuna.url import redact, scrub
from sweeper.study.study import StudyRecord
from tests.golden import Golden
from tests.refusals import refused
from tests.study.study_files import filed, in_database, make, mirrored, rubbish

SECRETIVE = "postgresql+psycopg2://user:s3cr%40t-pw@127.0.0.1:1/db?sslpassword=0ther-pw"


PASSWORDS = ("s3cr%40t-pw", "s3cr@t-pw", "0ther-pw")


def test_an_external_storage_is_used_and_never_repaired(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared {v}.db'}"
    with StudyRecord.open(folder, url) as study:
        study.record([make(0)])
    assert not (folder / "study.journal").exists()
    assert mirrored(folder, url.replace("{", "{{").replace("}", "}}")) == filed(folder)
    with StudyRecord.open(folder.with_name("second"), url):
        pass
    rubbish(tmp_path / "shared {v}.db")
    content = (tmp_path / "shared {v}.db").read_bytes()
    with pytest.raises(BadInput, match="not a database"):
        StudyRecord.open(folder, url)
    assert (tmp_path / "shared {v}.db").read_bytes() == content


def test_the_database_s_other_studies_stay(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    theirs = optuna.create_study(storage=url, study_name="theirs")
    theirs.set_user_attr("note", "kept")
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    with StudyRecord.open(folder, url) as study:
        study.propose([make(0).trial], {})
        study.record([make(0), make(1, "failed")])
    with StudyRecord.open(folder, url) as study:
        study.record([make(1, finished_at=2e9)])
        assert study.notices == []
    states = [trial.state.name for trial in in_database(url, folder.name)]
    assert states == ["COMPLETE", "FAIL", "COMPLETE"]
    assert mirrored(folder, url) == {r.key: ("complete", r.objective) for r in (make(0), make(1))}
    again = optuna.load_study(storage=url, study_name="theirs")
    assert again.user_attrs == {"note": "kept"} and len(again.trials) == 1


def test_a_study_of_others_is_not_thrown_away(folder: Path, tmp_path: Path, golden: Golden) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    theirs = optuna.create_study(storage=url, study_name=folder.name)
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    with refused(golden):
        StudyRecord.open(folder, url)
    assert len(in_database(url, folder.name)) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nodialect://user:s3cr%40t-pw@h/db", "nodialect"),
        ("user:s3cr@t-pw@h/db", "URL"),
        ("mysql://user:s3cr%40t-pw@h:s3cr@t-pw/db", "cannot be used"),
        ("sqlite:////no/such/folder/x.db", "unable to open"),
    ],
)
def test_unusable_storage_is_one_clear_error(folder: Path, url: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        StudyRecord.open(folder, url)
    no_password_in(caught.value, folder)


def no_password_in(error: BaseException, folder: Path) -> None:
    redacted = "".join(traceback.format_exception(error)) + repr(error)
    link: BaseException | None = error
    while link is not None:
        redacted += str(link) + str(link.args)
        link = link.__context__ or link.__cause__
    redacted += "".join(p.read_bytes().decode("latin-1") for p in folder.rglob("*") if p.is_file())
    assert not [password for password in PASSWORDS if password in redacted]


def test_missing_driver_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(BadInput) as caught:
        StudyRecord.open(folder, SECRETIVE)
    golden.says(caught)
    assert caught.value.__context__ is None
    no_password_in(caught.value, folder)


@pytest.mark.parametrize("echo", ["s3cr@t-pw", SECRETIVE])
def test_server_that_repeats_the_password_is_scrubbed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, echo: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        try:
            raise ConnectionError(f"could not connect with {echo}\nsecond line")
        except ConnectionError as error:
            raise RuntimeError(f"wrapped {echo}") from error

    monkeypatch.setattr(optuna.storages, "RDBStorage", fail)
    with pytest.raises(BadInput, match="could not connect") as caught:
        StudyRecord.open(folder, SECRETIVE)
    no_password_in(caught.value, folder)
    assert "second" not in str(caught.value)


def test_server_gone_later_is_a_notice_without_the_password(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError("gone 0ther-pw")

    class Server(optuna.storages.RDBStorage):
        def __init__(self, url: str, **options: Any) -> None:
            super().__init__(url.partition("?")[0], **options)

    monkeypatch.setattr(optuna.storages, "RDBStorage", Server)
    url = f"sqlite:///{tmp_path / 'far.db'}?password=0ther-pw"
    with StudyRecord.open(folder, url) as study:
        monkeypatch.setattr(optuna.Study, "add_trial", gone)
        study.record([make(0)])
        study.record([make(1)])
        (notice,) = study.notices
    assert "gone ***" in notice and "?password=***" in notice and "0ther-pw" not in notice
    assert len(StudyRecord.read(folder)) == 2


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("postgresql://user:secret@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("mysql://u:p@ss:w/rd@h/db", "mysql://u:***@h/db"),
        ("mysql://u@server:pw@h/db", "mysql://u@server:***@h/db"),
        ("redis://:secret@host", "redis://:***@host"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
        ("postgresql:///db?host=/tmp&user=u", "postgresql:///db?host=/tmp&user=u"),
        ("postgresql://u:a@h/db?sslpassword=b&x=y", "postgresql://u:***@h/db?sslpassword=***&x=y"),
        ("postgresql://h/db?Pass%77ord=b", "postgresql://h/db?Pass%77ord=***"),
        ("postgresql://h:1/db?password=a@b", "postgresql://***"),
        ("user:secret@host/db", "user:***@host/db"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("sqlite:///C:/a@b.db", "sqlite:///C:/a@b.db"),
    ],
)
def test_redact(url: str, redacted: str) -> None:
    assert redact(url) == redacted
    assert redact(redacted) == redacted


encodable = st.characters(codec="utf-8")


@given(password=st.text(encodable, min_size=3), user=st.text(encodable))
def test_no_encoded_password_survives(password: str, user: str) -> None:
    hidden = f"\N{LOCK}{password}"
    coded = quote(hidden, safe="")
    url = f"postgresql://{quote(user, safe='')}:{coded}@h/db?password={coded}"
    assert coded not in redact(url) and redact(url).endswith(":***@h/db?password=***")
    for text in (coded, hidden, url):
        assert hidden not in scrub(f"no {text}!", url) and coded not in scrub(f"no {text}!", url)


def test_optuna_is_kept_quiet_and_left_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    levels = []

    def add_trial(*_: object) -> None:
        levels.append(optuna.logging.get_verbosity())
        warnings.warn("experimental", optuna.exceptions.ExperimentalWarning, stacklevel=1)

    monkeypatch.setattr(optuna.Study, "add_trial", add_trial)
    optuna.logging.set_verbosity(logging.INFO)
    before = list(warnings.filters)
    with StudyRecord.open(folder) as study:
        study.record([make(0)])
        assert study.notices == []
    assert levels == [logging.ERROR]
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == logging.INFO
    assert list(warnings.filters) == before
