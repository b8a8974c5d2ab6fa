from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from sweeper.errors import BadInput, ConfigError, MissingValue
from sweeper.evidence.compare.reading import VariantRuns, joined, variant_runs
from sweeper.evidence.runs.read import read

PARAMS, TOKENS = (1e8, 3e8), (2e9, 6e9)


def rows(**columns: Any) -> list[dict[str, Any]]:
    return [
        {"optimizer": name, "params": n, "tokens": d, "loss": 3.5 - i / 4 - gain, **columns}
        for name, gain in (("adamw", 0.0), ("muon", 0.02))
        for i, (n, d) in enumerate(zip(PARAMS, TOKENS, strict=True))
    ]


def variants(
    table: object, by: str | None = "optimizer", baseline: str | None = "adamw", **how: Any
) -> VariantRuns:
    return variant_runs(read(pandas.DataFrame(table), **how), by, baseline)


def test_variants_stand_side_by_side_by_size() -> None:
    result = variants(rows())
    assert result.names == ["adamw", "muon"] and len(result.cells) == 4
    assert result.log2 == pytest.approx(np.log2([PARAMS, TOKENS]).T)
    assert result.flops == pytest.approx([6 * 1e8 * 2e9, 6 * 3e8 * 6e9])
    assert [dict(each) for each in result.measures] == [
        {"params": n, "tokens": d} for n, d in zip(PARAMS, TOKENS, strict=True)
    ]


def test_counts_that_differ_a_little_are_of_one_size_where_the_baseline_is() -> None:
    table = rows()
    table[2] |= {"params": 1.02e8, "tokens": 2.3e9}
    result = variants(table)
    cell = result.at(1, 0)
    assert len(result.log2) == 2 and result.log2[0] == pytest.approx(np.log2([1e8, 2e9]))
    assert cell is not None and cell.log2 == pytest.approx(np.log2([1.02e8, 2.3e9]))


def test_width_and_budget_or_steps_stand_for_parameters_and_tokens() -> None:
    table = [{"optimizer": r["optimizer"], "loss": r["loss"]} for r in rows()]
    for row, width in zip(table, (512, 1024, 512, 1024), strict=True):
        row |= {"width": width, "flops": 1e17 * width**3, "lr": 0.01}
    result = variants(table)
    assert np.diff(result.log2.sum(axis=1)) == pytest.approx(3)
    assert result.flops == pytest.approx([1e17 * 512**3, 1e17 * 1024**3])
    for horizon in (table, rows()):
        steps = [{**row, "steps": 1000 + i, "batch_size": 8} for i, row in enumerate(horizon)]
        assert not {"steps", "batch_size"} & {key for m in variants(steps).measures for key in m}
    for row in table:
        row.pop("flops")
        row |= {"steps": 1000 * (row["width"] // 512), "batch_size": 8}
    assert np.diff(variants(table).log2, axis=0) == pytest.approx(np.array([[2, 1]]))


def test_the_best_rate_counts_and_an_end_of_the_rates_is_a_bound() -> None:
    table = [
        {**row, "lr": rate, "loss": row["loss"] + 0.01 * abs(i - best)}
        for row in rows()
        for best in ((1 if row["optimizer"] == "adamw" else 2),)
        for i, rate in enumerate((0.001, 0.002, 0.004))
    ]
    result = variants(table)
    mine, theirs = result.at(1, 0), result.at(0, 0)
    assert (theirs.bound, theirs.configurations, theirs.losses.tolist()) == ("", 3, [3.5])
    assert mine.bound == "end" and mine.losses.tolist() == [3.48]
    once = [row for row in table if row["optimizer"] == "adamw" or row["lr"] == 0.004]
    assert [c.bound for c in variants(once).cells] == ["", "", "untuned", "untuned"]


def test_seeds_are_repeats_and_a_run_that_diverged_stays() -> None:
    table = [{**row, "seed": seed} for row in rows() for seed in range(3)]
    table[0]["loss"] = math.inf
    result = variants(table)
    cell = result.at(0, 0)
    assert cell is not None and cell.seeds == ("0", "1", "2")
    assert np.isinf(cell.losses).tolist() == [True, False, False]


def test_two_baselines_are_refused_with_what_takes_one() -> None:
    table = [{**row, "recipe": "new"} for row in rows()]
    table += [{**row, "recipe": "old", "loss": row["loss"] + 0.1} for row in rows()[:2]]
    with pytest.raises(BadInput, match=r'differ in recipe .*where=.*recipe == "new"') as refused:
        variants(table)
    assert "ignore='recipe'" in str(refused.value)
    assert len(variants(table, where='recipe == "new"').cells) == 4


@pytest.mark.parametrize(
    ("by", "baseline", "error", "said"),
    [
        (None, None, MissingValue, "such as optimizer"),
        ("optimiser", None, ConfigError, "optimizer"),
        ("optimizer", None, MissingValue, "one of adamw, muon"),
        ("optimizer", "adam", ConfigError, "adamw"),
        ("kind", None, BadInput, "two variants or more"),
    ],
)
def test_what_is_missing_is_named(
    by: str, baseline: str, error: type[Exception], said: str
) -> None:
    table = [{**row, "name": f"run {i}"} for i, row in enumerate(rows(kind="a"))]
    with pytest.raises(error, match=said) as refused:
        variants(table, by, baseline, ignore=["name"])
    assert "name (" not in str(refused.value)  # a value of each run's own is no variant


def test_a_run_of_no_variant_is_refused_with_what_leaves_it_out() -> None:
    table = rows()
    table[1]["optimizer"] = None
    with pytest.raises(BadInput, match="row 2 has no optimizer") as refused:
        variants(table)
    assert "where='optimizer != None'" in str(refused.value)
    assert len(variants(table, where="optimizer != None").cells) == 3


def test_a_row_that_was_written_twice_is_one_run() -> None:
    plain, seeded = variants(rows() * 2), variants(rows(seed=0) * 2)
    assert [len(cell.losses) for cell in (*plain.cells, *seeded.cells)] == [1] * 8
    assert any("counted once" in str(note) for note in seeded.notes)
    apart = variants([{**row, "seed": seed} for row in rows() for seed in (0, 1, None, None)])
    assert [len(cell.losses) for cell in apart.cells] == [4] * 4


def test_several_tables_are_a_variant_each() -> None:
    tables = [pandas.DataFrame(rows()[:2]), pandas.DataFrame(rows()[2:])]
    result = variant_runs(joined([read(table) for table in tables]), None, None)
    assert result.names == ["source 1", "source 2"] and result.by == "source"


def test_throughput_is_read_by_its_name_and_time_where_it_is_named() -> None:
    table = [{**row, "tokens_per_s": 100.0, "train_time": 5.0} for row in rows()]
    cell = variants(table).at(0, 0)
    assert cell is not None and cell.throughput == 100
    for row in table:
        row.pop("tokens_per_s")
    alone, named = variants(table).at(0, 0), variants(table, columns="time=train_time").at(0, 0)
    assert alone is not None and math.isnan(alone.throughput)
    assert named is not None and named.throughput == pytest.approx(2e9 / 5)


@pytest.mark.parametrize("column", ["tokens_per_s", "train_time"])
def test_a_time_that_is_not_above_0_is_not_known(column: str) -> None:
    role = "throughput" if column == "tokens_per_s" else "time"
    table = [{**row, column: 10.0 * i} for i, row in enumerate(rows())]
    result = variants(table, columns=f"{role}={column}")
    assert [math.isnan(cell.throughput) for cell in result.cells] == [True, False, False, False]
    assert any("not above 0 in 1 row" in str(note) for note in result.notes)


def test_tables_of_one_name_in_several_folders_are_several_variants(tmp_path: Path) -> None:
    places = [tmp_path / name / "runs.csv" for name in ("adamw", "muon", "lion")]
    for place in places:
        place.parent.mkdir()
        place.write_text("params,tokens,loss\n1e8,2e9,3.5\n")
    study = replace(read(places[0]), name=str(tmp_path / "mup-1.5"))
    (tmp_path / "mup-1.5").mkdir()
    result = variant_runs(joined([study, *map(read, places[1:])]), None, None)
    assert result.names == ["mup-1.5", str(places[1]), str(places[2])]
    with pytest.raises(BadInput, match="is given twice"):
        joined([read(places[0]), read(places[0])])


def test_sizes_that_are_not_in_ones_are_refused() -> None:
    rows = [(name, n, n * 2e7, 3 - n / 1e3) for name in "ab" for n in (50, 100, 200)]
    frame = pandas.DataFrame(rows, columns=["kind", "model_size", "tokens", "loss"])
    with pytest.raises(BadInput, match="Give all in ones"):
        variant_runs(read(frame), "kind", "a")
