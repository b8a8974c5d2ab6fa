"""A validation's runs as a table: judged from it, the verdict is the same to the last digit."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sweeper
from sweeper.decide.ladder_verdict import judge_ladder
from sweeper.decide.validation import Validation
from sweeper.errors import BadInput
from sweeper.evidence.runs.trained import final_runs
from sweeper.evidence.runs.tuned import TriedRun, tuned
from sweeper.records import to_json
from sweeper.report.sentences_transfer import worded
from sweeper.stats.ladder import LadderRule
from sweeper.study.runs_table import ValidatedRuns, by_design, write_runs
from sweeper.study.study import StudyRecord
from tests.stats.curves import BASE, Valley
from tests.study.study_files import make


def test_written_and_judged_again_a_verdict_is_the_same(tmp_path: Path) -> None:
    rule = LadderRule(widths=(16, 32, 64), max_shift=0.7)
    sizes = [replace(BASE, width=width) for width in rule.widths]
    valleys = [
        Valley(optimum=place, noise=0.01, number=number, edge=1.1)
        for number, place in enumerate((0.13, 0.0, -0.21))
    ]
    curves = [v.curve(size, rule) for v, size in zip(valleys, sizes, strict=True)]
    verdict = judge_ladder("width", curves, 0.3, BASE, rule)
    judged_by = {"max_shift": rule.max_shift, "step": rule.step}
    validation = Validation(planned_log2=0.3, axes=(verdict,), curves=tuple(curves), rule=judged_by)
    # What was typed where it was validated, and not what the study has.
    settings = {"study": "mine", "parameterization": "mup", "transfer.max_shift": 1.0}
    rows = ValidatedRuns.of(to_json(validation)).rows(settings)
    assert any(np.isinf(row["loss"]) for row in rows)
    with (tmp_path / "runs.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    judged = sweeper.judge(tmp_path / "runs.csv")
    (again,) = judged.document["axes"]
    assert again == to_json(worded(verdict)) and judged.judged.study == "mine"


def test_a_study_without_a_validation_has_no_runs_to_write(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        write_runs(tmp_path, tmp_path / "runs.csv")
    assert not (tmp_path / "runs.csv").exists()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_which_run_ended_first_changes_nothing(order: tuple[int, ...], tmp_path: Path) -> None:
    results = [replace(make(n), finished_at=1e9 + order[n], steps=10**9) for n in range(4)]
    with StudyRecord.open(tmp_path / "a") as study:
        study.record([results[n] for n in order])
    assert [by_design(study.results()), final_runs(study)[0]] == [results, results[:1]]


def test_each_cell_is_taken_at_its_best_and_not_where_that_lies_at_an_end() -> None:
    losses = {
        "bracketed": {-9: (3.0, 3.1), -8: (2.5, 2.7), -7: (2.0,), -6: (math.inf, 2.9)},
        "at an end": {-9: (3.0, 3.0), -8: (2.9, 2.9)},
        "one rate": {-8: (2.4,)},
        "bounded": {-8: (2.8,), -7: (math.inf,), -9: (2.9,)},
    }
    runs = [
        TriedRun(cell=cell, rate=rate, rest=(), loss=loss)
        for cell, points in losses.items()
        for rate, each in points.items()
        for loss in each
    ]
    best = tuned(runs)
    # One seed at 2^-7 is low by luck more easily: two at 2^-8 win.
    kept = [(runs[place].cell, runs[place].loss) for place in best.kept]
    assert kept == [("bracketed", 2.5), ("bracketed", 2.7), ("one rate", 2.4), ("bounded", 2.8)]
    assert {cell: len(places) for cell, places in best.at_end.items()} == {"at an end": 2}
    finite = sum(math.isfinite(run.loss) for run in runs)
    assert len(best.off) == finite - len(best.kept) - 2
    # Where nothing is bracketed, each says what it can.
    alone = tuned([run for run in runs if run.cell in ("at an end", "one rate")])
    assert len(alone.kept) == 3 and not alone.at_end
    # And how many are not known to be tuned.
    assert (best.untuned, alone.untuned) == (0, 1)
