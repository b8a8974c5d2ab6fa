import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas  # type: ignore[import-untyped]
import pytest

import sweeper
from sweeper.errors import call_words
from sweeper.evidence.compare.decision import decide
from sweeper.evidence.compare.differences import VariantQuestion
from sweeper.evidence.compare.page import training_commands
from sweeper.evidence.compare.reading import variant_runs
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.compare.verb import WinnerAnswer
from sweeper.evidence.predict.decision import NoLossLaw
from sweeper.evidence.runs.read import read
from sweeper.files import write_json
from sweeper.study.setup import read_setup, trials_of, write_setup
from sweeper.study.study import StudyRecord
from sweeper.trial import Result
from tests.cli.driver import Run, assert_refused
from tests.evidence.compare.test_decision import table
from tests.evidence.made import record_results, validated
from tests.golden import Golden
from tests.report import samples

ETAS = (-1.0, 0.0, 1.0)
WIDTHS = (16, 32)


def loss(width: int, eta: float, seed: int, floor: float) -> float:
    return floor - width / 160 + 0.1 * eta**2 + 0.02 * seed + 1e-4 * ((seed + eta + width) % 3)


def record(folder: Path, floor: float, steps: int = 0) -> None:
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


def test_studies_are_compared_and_a_loss_is_predicted(study: Path) -> None:
    shutil.copytree(study, study.parent / "b")
    answer = sweeper.compare("a", sweeper.open_study("b"), ignore=("data", "model", "train"))
    assert answer.answer == "cannot say" and "a" in repr(answer)
    assert answer.document["variants"][0]["name"] == "b"
    planned = sweeper.transfer("a", 64, horizons=True, dry_run=True)
    assert planned.document["sizes"]


def test_too_few_runs_of_a_table_are_no_error() -> None:
    table = {"params": [1e6, 2e6], "tokens": [2e7, 4e7], "loss": [3.0, 2.8]}
    few = sweeper.predict(table)
    assert isinstance(few, NoLossLaw) and few.answer == "cannot say yet" and few.prediction is None


@pytest.fixture
def two(study: Path) -> Path:
    shutil.copytree(study, study.parent / "b")
    return study.parent


def test_at_the_searched_width_seeds_are_fresh_ones_and_equal_studies_alike(
    two: Path, sweeper: Run
) -> None:
    seeds = {result.trial.seed for result in StudyRecord.read(two / "a").results()}
    answer = sweeper("compare", "--settle", "b", "a", "--to-width", "16", "--json")
    assert answer.code == 0, answer.err
    outcome = answer.document
    fresh = {result.trial.seed for result in StudyRecord.read(two / "a").results()} - seeds
    assert min(fresh) == outcome["first_seed"] > max(seeds)
    assert (outcome["ended"], outcome["runs"], outcome["answer"]) == ("alike", 8, "cannot say")
    written = json.loads((two / "comparisons/b+a/settled.json").read_text())
    assert written["variants"] == outcome["variants"]


def test_at_a_target_it_trains_what_tells_most_and_goes_on_where_it_stopped(
    two: Path, sweeper: Run
) -> None:
    flags = ("compare", "a", "b", "--settle", "--to-width", "64", "--baseline", "b")
    before = sorted(two.rglob("*"))
    dry = sweeper(*flags, "--dry-run", "--json").document
    assert (dry["begins"], dry["known"], dry["widths"]) == (8, 0, [16, 32, 64])
    assert 0 < dry["flops"]["begins"] < dry["flops"]["most"]
    assert sorted(two.rglob("*")) == before
    trained = {name: len(StudyRecord.read(two / name).results()) for name in "ab"}
    answer = sweeper(*flags, "--json")
    assert answer.code == 0, answer.err
    outcome = answer.document
    ending = [outcome[key] for key in ("baseline", "answer", "ended")]
    assert ending == ["b", "cannot say", "alike"]
    (variant,) = outcome["variants"]
    assert variant["name"] == "a" and variant["difference"]["value"] == pytest.approx(0, abs=1e-9)
    runs = {name: len(StudyRecord.read(two / name).results()) for name in "ab"}
    assert sum(runs.values()) - sum(trained.values()) == outcome["runs"] >= 8
    again = sweeper(*flags, "--json", "--strict")
    assert again.code == 4 and again.document["variants"] == outcome["variants"]
    assert runs == {name: len(StudyRecord.read(two / name).results()) for name in "ab"}


def test_studies_as_variants_name_the_command_that_trains_what_would_tell(
    two: Path, sweeper: Run
) -> None:
    rows = [
        {"study": name, "width": width, "steps": 4, "loss": 3 * width**-0.05 - gain}
        for name, gains in (("a", (0, 0, 0)), ("b", (0.007, 0.006, 0.006)))
        for width, gain in zip((8, 16, 32), gains, strict=True)
    ]
    runs = variant_runs(read(pandas.DataFrame(rows)), "study", "a")
    answer = WinnerAnswer(
        request=CompareRequest(names=("a", "b"), to_width=128),
        runs=runs,
        winner=decide(runs, VariantQuestion(counts={"width": 128})),
        folder=two,
        studies={name: two / name for name in "ab"},
    )
    (command,) = training_commands(answer)
    assert "of b" in command.why
    dry = sweeper(*call_words(command.call)[1:], "--dry-run", "--json")
    assert dry.code == 0 and dry.document["widths"] == [16, 32, 64]
    assert not training_commands(replace(answer, studies={}))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--budget", "20"], "--budget"),
        (["--settle", "--budget", "1e-9h"], "the 8 runs with which this comparison begins"),
        (["--settle", "--to-width", "64", "--budget", "7"], "--budget"),
        (["--settle", "--to-width", "20"], "--to-width"),
        (["--settle", "--detach"], "--detach"),
        (["--settle", "train.batch_size=4"], "a"),
        (["--settle", "parameterization=umup"], "parameterization"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(
    two: Path, sweeper: Run, arguments: list[str], key: str
) -> None:
    before = set(two.rglob("*"))
    answer = sweeper("compare", "a", "b", *arguments)
    assert answer.code == 2 and key in answer.err and not answer.crashed
    written = {path for path in two.rglob("*") if ".cache" not in path.parts}
    assert written == before


def test_a_first_round_that_fills_all_workers_says_its_seeds(two: Path, sweeper: Run) -> None:
    many = ("launcher=local", "launcher.workers=8")
    out = sweeper("compare", "--settle", "a", "b", "--dry-run", *many).out
    assert "8 runs at width 32, 4 seeds each (0 of them are known)" in " ".join(out.split())


TO = ("--to-params", "1.2e9", "--to-tokens", "2.4e10")


@pytest.fixture
def runs(workplace: Path) -> str:
    rows = table({"new": [0.05, 0.045, 0.04], "same": [0.001, -0.001, 0.0]})
    pandas.DataFrame(rows).to_csv(workplace / "runs.csv", index=False)
    return "runs.csv"


@pytest.mark.parametrize(
    ("baseline", "where", "code"),
    [
        ("base", "change != 'same'", 0),
        ("base", "change != 'new'", 4),
        ("new", "change != 'same'", 3),
    ],
)
def test_strict_decides_by_its_exit_code_and_one_line(
    runs: str, baseline: str, where: str, code: int, sweeper: Run, workplace: Path
) -> None:
    flags = ("--by", "change", "--baseline", baseline, *TO, "--where", where)
    ended = sweeper("compare", runs, *flags, "--strict", "--json")
    assert ended.code == code and ended.out.count("\n") == 1
    document = json.loads(ended.out)
    assert document["answer"] == {0: "better", 3: "worse", 4: "cannot say"}[code]
    assert document["target"]["counts"] == {"params": 1.2e9, "tokens": 2.4e10}
    assert not (workplace / "runs/comparisons").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--by", "change", "--baseline", "base", "--settle"), "--by is of runs that are there"),
        (("--by", "change", "--baseline", "base", "--fixed=E=9"), "below the lowest loss"),
        (("--by", "change", "--baseline", "base", "--fixed=E=nan"), "below the lowest loss"),
        (("--by", "change", "--baseline", "base", "--fixed=gamma=50"), "at least 0.001, at most 1"),
    ],
)
def test_bad_input_is_one_message(
    flags: tuple[str, ...], message: str, runs: str, sweeper: Run, workplace: Path
) -> None:
    ended = sweeper("compare", runs, *flags)
    assert ended.code == 2 and message in ended.err and "Traceback" not in ended.err
    assert not (workplace / "runs").exists()


def test_what_holds_of_many_is_one_note_on_screen_page_and_in_the_document(
    sweeper: Run, workplace: Path
) -> None:
    nan = float("nan")
    rows = table({"new": [0.05] * 3, **{f"v{i}": [0.01, nan, nan] for i in range(5)}})
    rows[-1]["loss"] = float("inf")
    pandas.DataFrame(rows).to_csv(workplace / "many.csv", index=False)
    ended = sweeper("compare", "many.csv", "--by", "change", "--baseline", "base", "--json")
    document = json.loads(ended.out)
    notes = [each for each in document["found"] if "not run at" in each]
    assert len(notes) == 1 and all(f"v{i}" in notes[0] for i in range(4))
    page = (workplace / "runs/comparisons/many/winner.html").read_text()
    for each in (*notes, next(s for s in document["found"] if "NaN or infinite" in s)):
        assert each in page and " ".join(each.split()) in " ".join(ended.err.split())
