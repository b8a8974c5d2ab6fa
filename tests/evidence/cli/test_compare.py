from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.files import write_json
from sweeper.study.setup import read_setup, trials_of, write_setup
from sweeper.study.study import StudyRecord
from sweeper.trial import Result
from tests.cli.driver import Run, assert_refused
from tests.evidence.made import record_results, validated
from tests.golden import Golden
from tests.report import samples

ETAS = (-1.0, 0.0, 1.0)
WIDTHS = (16, 32)


def loss(width: int, eta: float, seed: int, floor: float) -> float:
    """A parabola around eta = 0, lower for the wider; a seed adds the same to all its runs."""
    return floor - width / 160 + 0.1 * eta**2 + 0.02 * seed + 1e-4 * ((seed + eta + width) % 3)


def record(folder: Path, floor: float, steps: int = 0) -> None:
    """A ladder over `WIDTHS` as `transfer --validate` leaves it, and its trials."""
    trained = StudyRecord.read(folder).results()[0].trial
    steps = steps or trained.spec.train.steps
    curves, results, sizes = [], list[Result](), []
    for width in WIDTHS:
        curve = {str(eta): [loss(width, eta, seed, floor) for seed in range(3)] for eta in ETAS}
        results += [
            validated(trained, width, float(eta), seed, objective=each, seconds=60.0, steps=steps)
            for eta, losses in curve.items()
            for seed, each in enumerate(losses)
        ]
        size = {"width": width, "depth": 1, "batch_size": 2, "steps": steps}
        curves.append({"size": size, "losses": curve})
        sizes.append(samples.size_verdict(curves[-1], 0.0, 0.0, "holds"))
    record_results(folder, results)
    (folder / "transfer/w32-d1").mkdir(parents=True)
    verdict = {"axis": "width", "answer": "holds", "sizes": sizes}
    validation = {"planned_log2": 0.0, "axes": [verdict], "curves": curves}
    write_json(folder / "transfer/w32-d1/validation.json", validation)


@pytest.fixture
def ranked(study: Path) -> Path:
    shutil.copytree(study, study.parent / "b")
    record(study, 3.0)
    record(study.parent / "b", 3.5)
    return study.parent


def test_studies_are_variants_at_the_largest_size_that_all_have(ranked: Path, sweeper: Run) -> None:
    answer = sweeper("compare", "b", "a")
    assert answer.code == 0, answer.err
    assert "At width 32: a is better than b." in answer.out
    folder = ranked / "comparisons/b+a"
    document = json.loads((folder / "winner.json").read_text())
    assert document["baseline"] == "b" and document["target"]["counts"]["width"] == 32
    (a,) = document["variants"]
    assert (a["name"], a["answer"]) == ("a", "better")
    assert a["difference"]["value"] == pytest.approx(-0.5, abs=0.02)
    # A seed adds 0.02 to all its runs, which is in no difference.
    assert a["difference"]["high"] - a["difference"]["low"] < 0.2 and document["noise"] < 0.01
    assert a["compute"]["low"] > 1
    assert {each.name for each in folder.iterdir()} >= {"winner.html", "winner.json"}


def test_a_study_is_compared_by_its_current_setup(ranked: Path, sweeper: Run) -> None:
    folder = ranked / "a"
    short = read_setup(folder)
    long = replace(short, train=replace(short.train, steps=9))
    searched = trials_of(StudyRecord.read(folder)).searched[0]
    with StudyRecord.open(folder) as study:
        study.record([replace(searched, trial=replace(searched.trial, spec=long))])
    write_setup(folder, long)
    refused = sweeper("compare", "a", "b")
    assert refused.code == 2 and "train.steps is 9 in a, 4 in b" in refused.err
    write_setup(folder, short)
    assert sweeper("compare", "a", "b").code == 0


def test_other_training_is_refused_by_name_unless_told(
    study: Path, workplace: Path, sweeper: Run, golden: Golden
) -> None:
    shutil.copytree(study, study.parent / "b")
    record(study, 3.0)
    record(study.parent / "b", 3.5, steps=8)
    answer = sweeper("compare", "a", "b")
    assert_refused(answer, golden)
    assert not (workplace / "runs/comparisons").exists()
    assert sweeper("compare", "a", "b", "--ignore=train", "--columns", "steps=").code == 0
    misspelt = sweeper("compare", "a", "b", "--ignore=train,train.step")
    assert misspelt.code == 2 and "did you mean train.steps" in misspelt.err
