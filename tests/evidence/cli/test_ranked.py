from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import call_words
from sweeper.evidence.compare.decision import decide
from sweeper.evidence.compare.differences import VariantQuestion
from sweeper.evidence.compare.page import training_commands
from sweeper.evidence.compare.reading import variant_runs
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.compare.verb import WinnerAnswer
from sweeper.evidence.runs.read import read
from sweeper.study.study import StudyRecord
from tests.cli.driver import Run


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
