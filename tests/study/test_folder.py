import os
from pathlib import Path

from sweeper.files import write_json
from sweeper.study.folder import StudyFolder, TargetFolder, is_study, read_document, studies
from sweeper.trial import TrialSpec


def write(path: Path, at: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {})
    os.utime(path, ns=(at, at))
    return path


def test_the_newest_comes_first(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    old, new = study.target("w64-d2"), study.target("w256-d2")
    plans = [write(new.plan, 2), write(old.plan, 1)]
    validations = [write(old.validation, 4), write(new.validation, 3)]
    write(old.validation_of("dropout"), 9)
    checks = [write(study.plans_check, 6), write(study.measured("check"), 5)]
    write(study.measured("scales"), 9)
    assert study.plans() == plans
    assert study.validations() == validations
    assert study.checks() == checks
    assert study.targets() == [old, new]
    assert old.validations == [old.validation_of("dropout"), old.validation]


def test_verdicts_are_named_by_what_they_judge(tmp_path: Path) -> None:
    target = TargetFolder(tmp_path)
    names = [target.validation_of(name).name for name in ("eta", "dropout")]
    assert names == ["validation.json", "validation-dropout.json"]
    names = [target.settling_of(name).name for name in ("eta", "dropout")]
    assert names == ["settling.json", "settling-dropout.json"]


def test_a_folder_with_settings_and_results_is_a_study(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path / "a")
    write(study.config, 1)
    assert not is_study(study.path)
    study.results.mkdir()
    assert is_study(study.path)
    write(StudyFolder(tmp_path / ".hidden").config, 1)
    (tmp_path / "empty").mkdir()
    assert studies(tmp_path) == ["a"]


def test_a_note_says_what_a_damaged_document_costs(tmp_path: Path) -> None:
    notes = list[str]()
    path = TargetFolder(tmp_path).validation_of("dropout")
    assert read_document(path, TrialSpec, notes) is None and not notes
    write_json(path, "x" * 400)
    assert read_document(path, TrialSpec, notes) is None
    assert len(notes) == 1 and "writes it again" in notes[0] and len(notes[0]) < 500
