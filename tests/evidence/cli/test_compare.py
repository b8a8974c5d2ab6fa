"""`sweeper compare` on studies whose ladders were written by hand: nothing is trained here."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.decide.documents import Documents
from sweeper.evidence.compare.ladders import differences
from sweeper.files import read_json, write_json
from sweeper.study.setup import read_setup, trials_of, write_setup
from sweeper.study.study import Study
from sweeper.trial import Log2Hps, Result, TrialSpec
from tests.cli.driver import Run, assert_refused, measured
from tests.golden import Golden
from tests.report import samples
from tests.report.samples import plan

ETAS = (-1.0, 0.0, 1.0)
WIDTHS = (16, 32)


def loss(width: int, eta: float, seed: int, floor: float) -> float:
    """A parabola around eta = 0, lower for the wider; a seed adds the same to all its runs."""
    return floor - width / 160 + 0.1 * eta**2 + 0.02 * seed + 1e-4 * ((seed + eta + width) % 3)


def record(folder: Path, floor: float, **train: int) -> None:
    """A ladder over `WIDTHS` as `transfer --validate` leaves it, and its trials."""
    known = Study.read(folder).results()[0]
    curves, results, sizes = [], [], []
    for width in WIDTHS:
        spec = replace(known.trial.spec, width=width)
        spec = replace(spec, train=replace(spec.train, **train))
        curve = {}
        for eta in ETAS:
            losses = [loss(width, eta, seed, floor) for seed in range(3)]
            curve[str(eta)] = losses
            trial = replace(known.trial, spec=spec, log2_hps=Log2Hps({"eta": eta}))
            trial = replace(trial, phase="validate")
            results += [
                Result(
                    trial=replace(trial, seed=seed),
                    status="complete",
                    objective=one,
                    seconds=60.0,
                    steps=spec.train.steps,
                )
                for seed, one in enumerate(losses)
            ]
        size = {"width": width, "depth": 1, "batch_size": 2, "steps": spec.train.steps}
        curves.append({"size": size, "losses": curve})
        sizes.append(samples.size_verdict(curves[-1], 0.0, 0.0, "holds"))
    with Study.open(folder) as study:
        study.record(results)
    (folder / "transfer/w32-d1").mkdir(parents=True)
    write_json(
        folder / "transfer/w32-d1/validation.json",
        {
            "planned_log2": 0.0,
            "axes": [{"axis": "width", "answer": "holds", "sizes": sizes}],
            "curves": curves,
        },
    )


@pytest.fixture
def ranked(study: Path) -> Path:
    """The folder of studies: a, and b whose loss is 0.5 higher."""
    shutil.copytree(study, study.parent / "b")
    record(study, 3.0)
    record(study.parent / "b", 3.5)
    return study.parent


def test_studies_are_ranked_and_it_says_what_to_type_next(
    ranked: Path, sweeper: Run, golden: Golden
) -> None:
    answer = sweeper("compare", "b", "a")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert answer.next == "sweeper transfer --study a --to-width 64"
    assert lines[-2] == "Figure: runs/comparisons/b+a/comparison.png"
    best = "At the transferred eta: a is the best, 0.5000 [0.5000, 0.5000] nats below b."
    assert lines[-3].startswith(best)
    golden.says(measured(answer.out))
    folder = ranked / "comparisons/b+a"
    assert {one.name for one in folder.iterdir()} == {
        "comparison.json",
        "comparison.png",
        "comparison.svg",
    }


def test_of_studies_that_no_seeds_tell_apart_nothing_is_next(study: Path, sweeper: Run) -> None:
    shutil.copytree(study, study.parent / "b")
    record(study, 3.0)
    record(study.parent / "b", 3.0)
    assert sweeper("compare", "b", "a").next == ""


def test_the_document_has_places_robustness_and_costs(ranked: Path, sweeper: Run) -> None:
    document = sweeper("compare", "a", "b", "--json").document
    assert json.loads((ranked / "comparisons/a+b/comparison.json").read_text())["seeds"] == 3
    first, second = document["by_transferred"]
    assert (first["name"], first["last"], second["first"]) == ("a", 1, 2)
    assert second["gap"]["value"] == pytest.approx(0.5)
    robust = {one["octaves"]: one["value"] for one in document["candidates"][0]["robustness"]}
    assert robust[1.0] == pytest.approx(0.1, abs=0.01)
    cost = document["studies"][0]
    # Three runs of the search; 2 widths x 3 rates x 3 seeds of a minute each validate it.
    assert cost["tuning"]["trials"] == 3
    assert (cost["validation"]["trials"], cost["validation"]["seconds"]) == (
        18,
        pytest.approx(1080),
    )
    narrow, wide = document["candidates"][0]["widths"]
    share = 3 * narrow["flops"] / wide["flops"]
    assert cost["tuning"]["share"] == pytest.approx(share)


def test_a_study_is_compared_by_its_current_setup(
    ranked: Path, sweeper: Run, golden: Golden
) -> None:
    """What a longer search and its ladder follow is kept, and not counted."""
    folder, before = ranked / "a", sweeper("compare", "a", "b", "--json").document
    short = read_setup(folder)
    assert short is not None
    long = replace(short, train=replace(short.train, steps=9))
    searched = trials_of(Study.read(folder)).searched[0]
    with Study.open(folder) as study:
        study.record([replace(searched, trial=replace(searched.trial, spec=long))])
    write_setup(folder, long)
    assert_refused(sweeper("compare", "a", "b"), golden)
    record(folder, 3.0, steps=9)
    assert_refused(sweeper("compare", "a", "b"), golden)
    anyway = sweeper("compare", "a", "b", "--anyway", "--json").document["studies"][0]
    assert (anyway["tuning"]["trials"], anyway["validation"]["trials"]) == (1, 18)
    write_setup(folder, short)
    assert sweeper("compare", "a", "b", "--json").document == before


def test_no_command_goes_on_from_the_verdict_of_another_setup(
    ranked: Path, sweeper: Run, golden: Golden
) -> None:
    folder = ranked / "a"
    write_json(folder / "transfer/w32-d1/plan.json", plan())
    assert len(Documents.read(folder).targets) == 1
    setup = read_setup(folder)
    assert setup is not None
    write_setup(folder, replace(setup, train=replace(setup.train, steps=9)))
    assert Documents.read(folder).targets == ()
    status = sweeper("status", "--study", "a")
    assert not status.next
    golden.says(measured(status.out))
    refused = sweeper("export", "--study", "a", "--to", "pytorch")
    assert_refused(refused, golden)


def test_the_eta_that_is_planned_is_compared(ranked: Path, sweeper: Run) -> None:
    """The ladder of a replaced the eta of its search by one that is an octave off."""
    path = ranked / "a/transfer/w32-d1/validation.json"
    record = read_json(path)
    path.write_text(json.dumps(record | {"planned_log2": 1.0}))
    _, second = sweeper("compare", "a", "b", "--json").document["by_transferred"]
    assert second["gap"]["value"] == pytest.approx(0.4, abs=0.01)


def test_other_training_is_refused_by_name_unless_told(
    study: Path, workplace: Path, sweeper: Run, golden: Golden
) -> None:
    shutil.copytree(study, study.parent / "b")
    record(study, 3.0)
    record(study.parent / "b", 3.5, steps=8)
    answer = sweeper("compare", "a", "b")
    assert_refused(answer, golden)
    assert not (workplace / "runs/comparisons").exists()
    told = sweeper("compare", "a", "b", "--anyway")
    assert told.code == 0, told.err
    golden.says(measured(told.out))


def test_a_number_is_the_same_however_it_is_written(ranked: Path) -> None:
    """A whole one without a point, and a text of a file in YAML, which knows no 1e-3."""
    spec = trials_of(Study.read(ranked / "a")).current[0].trial.spec

    def with_argument(value: object) -> TrialSpec:
        arguments = {**spec.model.arguments, "dropout": value}
        return replace(spec, model=replace(spec.model, arguments=arguments))

    for one, other in [(0, 0.0), ("1e-3", 0.001), (True, True)]:
        assert not differences({"a": with_argument(one), "b": with_argument(other)})
    for one, other in [(1, True), ("a", "b"), (0.001, 0.002), ("nan", 0)]:
        assert differences({"a": with_argument(one), "b": with_argument(other)}), (one, other)


def test_a_study_without_a_ladder_gets_the_command_to_run(
    ranked: Path, sweeper: Run, golden: Golden
) -> None:
    shutil.rmtree(ranked / "b/transfer")
    answer = sweeper("compare", "a", "b")
    assert_refused(answer, golden)


def test_trials_that_are_gone_are_told(ranked: Path, sweeper: Run, golden: Golden) -> None:
    for path in (ranked / "b/results").glob("*.jsonl"):
        path.unlink()
    assert_refused(sweeper("compare", "a", "b"), golden)


def test_a_damaged_record_gets_the_command_that_writes_it_anew(
    ranked: Path, sweeper: Run, golden: Golden
) -> None:
    path = ranked / "b/transfer/w32-d1/validation.json"
    path.write_text(json.dumps(read_json(path)).replace('"losses"', '"lost"'))
    assert_refused(sweeper("compare", "a", "b"), golden)


def test_a_proportion_is_not_told_as_flops(
    ranked: Path, sweeper: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what a command's run takes: what stands for it is named."""
    monkeypatch.setattr(
        "sweeper.evidence.compare.ladders.flops_in", lambda _: lambda spec: math.nan
    )
    answer = sweeper("compare", "a", "b", "--verbose")
    assert answer.code == 0, answer.err
    title = next(line for line in answer.out.splitlines() if line.startswith("Ranked at"))
    assert "width² x depth x tokens" in title
    assert "Cost: FLOPs not known" in answer.out
