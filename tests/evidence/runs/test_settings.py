"""What else differs is named, with what can be done: never by throwing sizes together."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import SHELL, BadInput
from sweeper.evidence.runs.grid import Grid, GridOptions, grid_of, ladder_runs
from sweeper.evidence.runs.read import read
from tests.evidence.runs.grids import runs
from tests.refusals import raises_config_error

CASES = Path(__file__).parents[2].parent / "shared/data/cases"


def grid(source: object, *, ignore: tuple[str, ...] = (), columns: str = "") -> Grid:
    table = ladder_runs(read(source, ignore=ignore, columns=columns))
    return grid_of(table, GridOptions(noise=0.01))


def two(column: str) -> pandas.DataFrame:
    frame = runs(seeds=1)
    return pandas.concat([frame.assign(**{column: 100}), frame.assign(**{column: 200})])


@pytest.mark.parametrize("column", ["tokens", "batch_size", "steps", "experts"])
def test_a_size_is_never_proposed_to_be_ignored(column: str) -> None:
    with pytest.raises(BadInput) as caught:
        grid(two(column))
    said = caught.value.spelled(SHELL)
    assert "--ignore" not in said and f"--where '{column} == 100' takes those alike" in said
    assert "seed=" not in said


@pytest.mark.parametrize("column", ["tokens", "batch_size", "experts"])
def test_sizes_that_differ_are_no_repeats_of_a_run(column: str) -> None:
    with raises_config_error("ignore", column) as caught:
        grid(two(column), ignore=(column,))
    said = caught.value.spelled(SHELL)
    where = shlex.split(said[said.index("--where") :].split(" takes")[0])[1]
    assert len(read(two(column), where=where)) == len(runs(seeds=1))


def test_a_size_that_goes_with_the_axis_may_be_ignored() -> None:
    frame = runs(seeds=1).assign(batch_size=lambda table: table.n_embd // 4)
    assert len(grid(frame, ignore=("batch_size",)).curves) == 4


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared tables")
@pytest.mark.parametrize("name", ["two_horizons", "two_horizons_b", "two_batches"])
def test_published_tables_of_two_sizes_are_two_ladders(name: str) -> None:
    with pytest.raises(BadInput, match="takes those alike") as caught:
        grid(CASES / f"{name}.csv")
    assert "ignore=" not in str(caught.value)


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared tables")
def test_a_sheet_is_judged_after_a_condition_and_what_does_not_matter() -> None:
    ignore = ("GPU", "Runtime", "Notes")
    sheet = grid_of(
        ladder_runs(read(CASES / "spreadsheet.csv", where="State != None", ignore=ignore)),
        GridOptions(),
    )
    assert [curve.size.width for curve in sheet.curves] == [128, 256, 512, 1024]
    assert "crashed" in " ".join(map(str, sheet.notes))
    assert sheet.runs == 63 and sheet.seeds >= 2
