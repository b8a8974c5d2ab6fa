import json
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.errors import BadInput
from sweeper.records import to_json
from sweeper.study.setup import changes, check_setup, read_setup, trials_of, write_setup
from sweeper.study.study import StudyRecord
from sweeper.trial import Log2Hps, Result, Trial, TrialSpec
from tests.golden import Golden
from tests.specs import spec_of

BASE = spec_of()
LION = {"_target_": "sweeper.engine.optimizers.first_order.Lion"}
WARM = spec_of({"train": {"warmup": 0.5}})


def result(spec: TrialSpec, phase: str = "eta", eta: float = 0.0, at: float = 0.0) -> Result:
    trial = Trial(spec=spec, log2_hps=Log2Hps({"eta": eta}), phase=phase)
    return Result(trial=trial, status="complete", objective=2.0 + eta, finished_at=at)


def study_of(folder: Path, *results: Result) -> StudyRecord:
    with StudyRecord.open(folder / "a") as study:
        study.record(results)
    return study


def test_a_change_has_the_name_of_its_key() -> None:
    tree = {"model": {"width": 16, "ffn_ratio": 3}, "optimizer": LION, "data": {"digest": "x"}}
    other = spec_of(tree | {"train": {"steps": 20}})
    other = replace(other, runner={"name": "engine", "numerics": 0, "code": {"train.py": "y"}})
    assert changes(BASE, BASE) == {}
    assert changes(BASE, other) == {
        "runner.code.train.py": (None, "y"),
        "model.width": (8, 16),
        "model.ffn_ratio": (None, 3),
        "optimizer": ("adamw", "lion"),
        "data.digest": (None, "x"),
        "train.steps": (10, 20),
    }


def test_a_ladder_belongs_to_its_search(tmp_path: Path) -> None:
    larger = replace(BASE, width=32, train=replace(BASE.train, steps=99, batch_size=7))
    elsewhere = replace(WARM, width=32)
    longer = replace(BASE, train=replace(BASE.train, steps=99))
    results = [
        result(WARM, eta=-1.0),
        result(longer, eta=-2.0),
        result(BASE, at=1.0),
        result(larger, "validate", at=2.0),
        result(elsewhere, "validate", at=3.0),
    ]
    study = study_of(tmp_path, *results)
    trials = trials_of(study)
    assert [r.trial.spec for r in trials.current] == [BASE, larger] and trials.others == 3
    assert [r.objective for r in trials.searched] == [2.0]
    write_setup(study.folder, WARM)
    assert [r.objective for r in trials_of(study).searched] == [1.0]


def test_horizons_that_warm_up_for_as_many_steps_are_a_ladder(tmp_path: Path) -> None:
    """Under a schedule with a stable part: 5 steps of 10 are a share of 0.25 of 20, all of 4."""
    steady = spec_of({"train": {"schedule": "wsd", "warmup": 0.5, "steps": 10}})
    longer = replace(steady, train=replace(steady.train, steps=20, warmup=0.25))
    shorter = replace(steady, train=replace(steady.train, steps=4, warmup=1.0))
    other = replace(steady, train=replace(steady.train, steps=20, warmup=0.1))
    ladder = [result(spec, "validate") for spec in (longer, shorter, other)]
    of_setup = trials_of(study_of(tmp_path, result(steady), *ladder))
    assert {r.trial.spec for r in of_setup.current} == {steady, longer, shorter}


def test_the_ladder_of_an_earlier_search_is_of_another_setup(tmp_path: Path) -> None:
    """Only its length tells them apart; a ladder over the steps has lengths that no search had."""
    short, long = BASE, replace(BASE, train=replace(BASE.train, steps=99))
    longest = replace(BASE, width=32, train=replace(BASE.train, steps=500))
    ladders = [replace(short, width=32), replace(long, width=32), longest]
    ladder_results = [result(spec, "validate", at=2.0) for spec in ladders]
    study = study_of(tmp_path, result(short), result(long, at=1.0), *ladder_results)
    for setup, ladder in ((long, ladders[1]), (short, ladders[0])):
        write_setup(study.folder, setup)
        assert {r.trial.spec for r in trials_of(study).current} == {setup, ladder, longest}


def found_in(folder: Path) -> dict[str, str]:
    paths = [
        path for name in ("transfer", "check", "setups") for path in folder.rglob(f"{name}/**/*")
    ]
    return {str(path.relative_to(folder)): path.read_text() for path in paths if path.is_file()}


def test_what_was_found_of_another_setup_is_set_aside_and_comes_back(
    tmp_path: Path, golden: Golden
) -> None:
    study = study_of(tmp_path, result(BASE))
    assert write_setup(study.folder, BASE) == []
    for name in ("transfer/w32-d1/validation.json", "check/check.json"):
        (study.folder / name).parent.mkdir(parents=True)
        (study.folder / name).write_text("of the base")
    of_base, conclusion = found_in(study.folder), study.folder / "search.json"
    conclusion.write_text("{}")
    assert write_setup(study.folder, BASE) == [] and found_in(study.folder) == of_base
    assert conclusion.exists()
    place = f"setups/{BASE.digest[:12]}"
    (note,) = write_setup(study.folder, WARM)
    assert note.endswith(f"are now in {study.folder / place}")
    golden.says(note.partition(" are now in ")[0])
    assert not conclusion.exists(), "another setup's conclusion is none of this one"
    aside = {f"{place}/{name}": text for name, text in of_base.items()}
    assert found_in(study.folder) == aside
    (study.folder / "transfer").mkdir()
    (study.folder / "transfer/plan.json").write_text("of the warm one")
    assert len(write_setup(study.folder, BASE)) == 2
    other = f"setups/{WARM.digest[:12]}/transfer/plan.json"
    assert found_in(study.folder) == of_base | {other: "of the warm one"}


@pytest.mark.parametrize("done", ["one folder is moved", "all are moved", "the setup is written"])
def test_a_driver_that_is_killed_in_between_loses_nothing(tmp_path: Path, done: str) -> None:
    study = study_of(tmp_path, result(BASE))
    write_setup(study.folder, BASE)
    ours, theirs = (study.folder / "setups" / spec.digest[:12] for spec in (BASE, WARM))
    (theirs / "transfer").mkdir(parents=True)
    (theirs / "transfer/plan.json").write_text("warm")
    moved = {"one folder is moved": ["transfer"]}.get(done, ["transfer", "check"])
    for name in ("transfer", "check"):
        place = (ours if name in moved else study.folder) / name
        place.mkdir(parents=True)
        (place / "plan.json").write_text("base")
    if done == "the setup is written":
        (study.folder / "setup.json").write_text(json.dumps(to_json(WARM)))
    write_setup(study.folder, WARM)
    kept = {f"setups/{ours.name}/{name}/plan.json": "base" for name in ("transfer", "check")}
    assert found_in(study.folder) == kept | {"transfer/plan.json": "warm"}


@pytest.mark.parametrize("text", ["", "[1]", '{"width": 3}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "setup.json").write_text(text)
    assert read_setup(tmp_path) is None


def test_a_study_without_trials_takes_any_setup(tmp_path: Path) -> None:
    check_setup(tmp_path / "a", BASE)
    study = study_of(tmp_path)
    write_setup(study.folder, BASE)
    assert read_setup(study.folder) == BASE
    check_setup(study.folder, WARM)
    assert trials_of(study).others == 0
    study = study_of(tmp_path, replace(result(BASE), status="failed", error="out of luck"))
    check_setup(study.folder, WARM)


def test_long_values_and_many_changes_are_cut(tmp_path: Path, golden: Golden) -> None:
    study = study_of(tmp_path, result(BASE))
    runner = {"name": "command", "numerics": 0, "command": ["python", "x" * 99]}
    runner |= {f"key{i}": i for i in range(9)}
    runner["modules"] = {"my.model": "0" * 64}
    with pytest.raises(BadInput) as raised:
        check_setup(study.folder, replace(BASE, runner=runner))
    message = str(raised.value)
    golden.says(message)
    assert "x" * 50 not in message
    # A digest is no value to show.
    runner = {**BASE.runner, "modules": {"my.model": "0" * 64}}
    with refused(golden):
        check_setup(study.folder, replace(BASE, runner=runner))
