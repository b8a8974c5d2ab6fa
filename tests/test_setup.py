from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.errors import BadInput
from sweeper.setup import changes, check_setup, read_setup, trials_of, write_setup
from sweeper.study import Study
from sweeper.trial import Log2Hps, Result, Trial, TrialSpec
from tests.specs import spec_of

BASE = spec_of()
WARM = spec_of({"train": {"warmup": 0.5}})


def result(spec: TrialSpec, phase: str = "eta", eta: float = 0.0, at: float = 0.0) -> Result:
    trial = Trial(spec=spec, log2_hps=Log2Hps({"eta": eta}), phase=phase)
    return Result(trial=trial, status="complete", objective=2.0 + eta, finished_at=at)


def study_of(folder: Path, *results: Result) -> Study:
    with Study.open(folder / "a") as study:
        study.record(results)
    return study


def test_a_change_has_the_name_of_its_key() -> None:
    other = spec_of(
        {
            "model": {"width": 16, "ffn_ratio": 3},
            "optimizer": {"_target_": "sweeper.training.lion.Lion"},
            "data": {"digest": "x"},
            "train": {"steps": 20},
        }
    )
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


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{", '{"width": 3}'])
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


def test_trials_that_failed_are_no_obstacle(tmp_path: Path) -> None:
    study = study_of(tmp_path, replace(result(BASE), status="failed", error="out of luck"))
    check_setup(study.folder, WARM)


def test_long_values_and_many_changes_are_cut(tmp_path: Path) -> None:
    study = study_of(tmp_path, result(BASE))
    runner = {"name": "command", "numerics": 0, "command": ["python", "x" * 99]}
    runner |= {f"key{i}": i for i in range(9)}
    runner["modules"] = {"my.model": "0" * 64}
    with pytest.raises(BadInput) as refused:
        check_setup(study.folder, replace(BASE, runner=runner))
    said = str(refused.value)
    assert "runner.name was engine, is command" in said and "; and 6 more. " in said
    assert "python xxx" in said and "x" * 50 not in said


def test_a_digest_is_no_value_to_show(tmp_path: Path) -> None:
    study = study_of(tmp_path, result(BASE))
    runner = {**BASE.runner, "modules": {"my.model": "0" * 64}}
    with pytest.raises(BadInput, match=r"setup: the content of my\.model changed\. Choose"):
        check_setup(study.folder, replace(BASE, runner=runner))
