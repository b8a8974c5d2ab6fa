import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from sweeper.search.optuna import recording
from sweeper.study.study import StudyRecord
from sweeper.trial import Axis, Log2Hps, Result, Space
from tests.golden import Golden
from tests.study.study_files import filed, journal_trials, loaded, make, mirrored, refuse, rubbish

SPACE: Space = {"eta": Axis(low=-3, high=1), "alpha_attn": Axis(low=-2, high=2)}


def test_trials_are_asked_before_they_run_and_told_as_they_end(folder: Path) -> None:
    results = [
        make(4),
        make(40, "diverged"),
        make(5, "failed", error="no memory"),
        make(6, "pruned", steps=7),
    ]
    with StudyRecord.open(folder) as study:
        study.propose([result.trial for result in results], SPACE)
        study.propose([results[0].trial], SPACE)
        assert [trial.state for trial in journal_trials(folder)] == [TrialState.RUNNING] * 4
        study.record([results[1], results[0]])
        study.record(results[2:])
        assert study.notices == []
    good, bad, failed, stopped = journal_trials(folder)
    assert good.params == {"eta": 0.25, "alpha_attn": 2.0}
    attributes = {"key": make(4).key, "phase": "random", "width": 64, "depth": 2, "seed": 4}
    assert good.user_attrs == attributes | {"result": {"heldout": 7.0, "seconds": 2.0}}
    assert (good.state, good.value) == (TrialState.COMPLETE, 7.0)
    assert good.distributions["alpha_attn"] == FloatDistribution(0.25, 4.0, log=True)
    assert (bad.state, bad.value) == (TrialState.COMPLETE, math.inf)
    assert bad.distributions["eta"].high == bad.params["eta"] == 2.0**7
    assert (failed.state, failed.value) == (TrialState.FAIL, None)
    assert failed.user_attrs["result"]["error"] == "no memory"
    assert (stopped.state, stopped.value) == (TrialState.PRUNED, 9.0)
    assert stopped.intermediate_values == {7: 9.0}
    assert loaded(folder).best_trial.number == good.number


def chosen(number: int, kind: str) -> Result:
    result = make(number)
    return replace(result, trial=replace(result.trial, choices={"kind": kind}))


def test_choices_are_parameters_until_their_list_is_another(folder: Path) -> None:
    space = {**SPACE, "kind": Axis(low=0, high=1, choices=("a", "b"))}
    with StudyRecord.open(folder, None, space) as study:
        study.propose([chosen(0, "b").trial], space)
        study.record([chosen(0, "b"), chosen(1, "a")])
    longer = {**SPACE, "kind": Axis(low=0, high=2, choices=("a", "b", "c"))}
    with StudyRecord.open(folder, None, longer) as study:
        study.propose([chosen(2, "c").trial], longer)
        study.record([chosen(2, "c")])
        assert study.notices == []
    trials = journal_trials(folder)
    assert [trial.params.get("kind") for trial in trials] == ["b", "a", None]
    assert trials[0].distributions["kind"] == CategoricalDistribution(("a", "b"))
    assert [trial.user_attrs["choices"]["kind"] for trial in trials] == ["b", "a", "c"]


def test_what_was_recorded_and_not_told_is_told_at_the_next_start(folder: Path) -> None:
    results = [make(0), make(1, "diverged"), make(2, "failed"), make(3, "pruned")]
    with pytest.MonkeyPatch.context() as killed, StudyRecord.open(folder) as study:
        study.propose([result.trial for result in results], SPACE)
        killed.setattr(recording.OptunaStudy, "tell", lambda *_: None)
        study.record(results)
    assert {trial.state for trial in journal_trials(folder)} == {TrialState.RUNNING}
    StudyRecord.open(folder).close()
    assert mirrored(folder) == filed(folder)
    before = (folder / "study.journal").read_bytes()
    StudyRecord.open(folder).close()
    assert (folder / "study.journal").read_bytes() == before, "nothing is told twice"
    assert [trial.params["eta"] for trial in journal_trials(folder)[:3]] == [
        result.trial.hps["eta"] for result in results[:3]
    ]


def test_what_was_asked_and_not_trained_is_used_again_or_fails(folder: Path) -> None:
    with StudyRecord.open(folder) as study:
        study.propose([make(0).trial, make(1).trial], SPACE)
    loaded(folder).enqueue_trial({}, user_attrs={"key": "a kill came before it was asked"})
    with StudyRecord.open(folder) as study:
        study.propose([make(0).trial, make(2).trial], SPACE)
        study.record([make(0), make(2)])
        study.describe({"loss": 3.0})
        assert study.notices == []
    states = [trial.state.name for trial in journal_trials(folder)]
    assert states == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]


def test_a_trial_that_failed_or_was_stopped_is_asked_anew(folder: Path) -> None:
    with StudyRecord.open(folder) as study:
        for result in (make(0, "failed"), make(0, "pruned"), make(0, finished_at=2e9)):
            study.propose([result.trial], SPACE)
            study.record([result])
    assert [trial.state.name for trial in journal_trials(folder)] == ["FAIL", "PRUNED", "COMPLETE"]
    assert mirrored(folder) == filed(folder)


def test_a_trial_that_optuna_cannot_show_stops_nothing(folder: Path) -> None:
    # Its power of two is zero, which no logarithmic range holds.
    odd = replace(make(1), trial=replace(make(1).trial, log2_hps=Log2Hps({"eta": -1080.0})))
    with StudyRecord.open(folder) as study:
        study.propose([odd.trial, make(2).trial], SPACE)
        study.record([odd])
        study.record([make(2)])
        study.record([replace(make(3), objective=math.nan)])
        assert len(study.results()) == 3
        assert [odd.key in notice for notice in study.notices] == [True]
    assert mirrored(folder).keys() == {make(2).key, make(3).key}


def test_what_is_said_of_the_whole_study_is_kept_once(folder: Path) -> None:
    journal, answer = folder / "study.journal", {"loss": 2.5, "best": {"eta": 0.25}}
    with StudyRecord.open(folder) as study:
        study.record([make(0)])
        study.describe(answer)
        study.record([make(1)])
    assert loaded(folder).user_attrs == answer
    size = journal.stat().st_size
    with StudyRecord.open(folder) as study:
        study.describe(answer)
        assert journal.stat().st_size == size, "nothing is written twice"
        study.describe({"loss": 2.25})
        assert not study.notices
    assert loaded(folder).user_attrs == {"loss": 2.25, "best": {"eta": 0.25}}
    assert mirrored(folder) == filed(folder) and len(filed(folder)) == 2


def test_a_dashboard_s_notes_are_kept(folder: Path) -> None:
    with StudyRecord.open(folder) as study:
        study.record([make(0)])
        storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
        number = storage.get_study_id_from_name("first")
        storage.set_study_system_attr(number, "dashboard:note_str:0", "look here")
        loaded(folder).set_user_attr("mine", 7)
        study.describe({"loss": 3.5})
        assert study.notices == []
    assert loaded(folder).user_attrs == {"loss": 3.5, "mine": 7}
    assert storage.get_study_system_attrs(number)["dashboard:note_str:0"] == "look here"


def test_it_catches_up_in_the_same_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    with StudyRecord.open(folder) as study:
        with monkeypatch.context() as patch:
            patch.setattr(JournalFileBackend, "append_logs", refuse(errno.EIO))
            study.record([make(0, "failed")])
            study.record([make(1)])
        study.record([make(2)])
        assert mirrored(folder) == {}
        study._optuna._retry_at = 0.0  # type: ignore[union-attr]
        study.record([make(3)])
        assert mirrored(folder) == filed(folder)
        (notice,) = study.notices
        golden.says(notice)
        study.close()
        study.record([make(0)])
        assert mirrored(folder) == filed(folder)


def from_the_future(journal: Path) -> None:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[2]["op_code"] = 99
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def other_study(journal: Path) -> None:
    journal.write_text(journal.read_text().replace('"first"', '"second"'))


def by_someone_else(journal: Path) -> None:
    loaded(journal.parent).add_trial(optuna.trial.create_trial(value=1.0))


@pytest.mark.parametrize("damage", [rubbish, from_the_future, other_study, by_someone_else])
def test_a_damaged_journal_is_set_aside_and_all_is_told_again(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    with StudyRecord.open(folder) as study:
        for number in range(4):
            study.record([make(number, "failed" if number == 1 else "complete")])
    expected = mirrored(folder)
    assert expected == filed(folder)
    damage(journal := folder / "study.journal")
    damaged = journal.read_bytes()[:1000]
    with StudyRecord.open(folder) as study:
        (notice,) = study.notices
        assert "study.journal, was damaged" in notice
        assert len(study) == 4
    assert mirrored(folder) == expected
    assert journal.with_name("study.journal.damaged").read_bytes().startswith(damaged)


def test_a_journal_that_was_cut_short_catches_up(folder: Path) -> None:
    with StudyRecord.open(folder) as study:
        study.propose([make(0).trial], SPACE)
        study.record([make(0), make(1, "failed")])
        study.record([make(2)])
    journal, expected = folder / "study.journal", mirrored(folder)
    whole = journal.read_bytes()
    created = whole.index(b"\n") + 1
    for size in {0, created, *range(created, len(whole), 211), len(whole) - 1, len(whole)}:
        journal.write_bytes(whole[:size])
        with StudyRecord.open(folder) as study:
            assert study.notices == []
        assert mirrored(folder) == expected


def test_a_lock_that_a_killed_dashboard_left_is_not_waited_for(folder: Path) -> None:
    StudyRecord.open(folder).close()
    assert JournalFileOpenLock(str(folder / "study.journal")).acquire()
    with StudyRecord.open(folder) as study:
        study.record([make(0)])
    assert (folder / "study.journal.lock").exists()
    os.unlink(folder / "study.journal.lock")
    assert mirrored(folder) == filed(folder)
