"""What else differs is named, with what can be done: never by throwing sizes together."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import SHELL, BadInput
from sweeper.runs.grid import Grid, GridOptions, grid_of, ladder_runs
from sweeper.runs.read import read
from tests.refusals import raises_config_error
from tests.runs.grids import runs

CASES = Path(__file__).parents[2].parent / "shared/data/cases"


def grid(source: object, *, ignore: tuple[str, ...] = (), columns: str = "") -> Grid:
    table = ladder_runs(read(source, ignore=ignore, columns=columns))
    return grid_of(table, GridOptions(noise=0.01))


def two(column: str) -> pandas.DataFrame:
    frame = runs(seeds=1)
    return pandas.concat([frame.assign(**{column: 100}), frame.assign(**{column: 200})])


@pytest.mark.parametrize("column", ["tokens", "batch_size", "steps", "experts", "ti", "D", "numl"])
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


def test_columns_that_may_be_sizes_are_proposed_with_their_first_value() -> None:
    frame = two("ti").rename(columns={"n_embd": "h"}).assign(batch_size=32)
    with pytest.raises(BadInput) as caught:
        grid(frame)
    said = caught.value.spelled(SHELL)
    assert "--columns width=h,steps=ti" in said and "h 128" in said and "ti 100" in said


@pytest.mark.parametrize("name", ["h", "hidden", "emb", "channels"])
@pytest.mark.parametrize("loss", ["smooth loss", "c4_en_loss", "c4_en_bpb", "final nll"])
def test_usual_names_are_proposed_and_what_is_proposed_is_taken(name: str, loss: str) -> None:
    frame = runs(seeds=1).rename(columns={"n_embd": name, "val_loss": loss})
    with raises_config_error("columns", None) as caught:
        grid(frame)
    said = caught.value.spelled(SHELL)
    assert f"{name!r} has 128 in the first row" in said
    columns = shlex.split(said[said.index("--columns ", 12) :].split(": ")[0])[1]
    found = grid(frame, columns=columns)
    assert found.columns["width"] == name and found.columns["loss"] == loss
    assert ("bits/byte" if "bpb" in loss else "nats") in found.noise


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared tables")
@pytest.mark.parametrize("name", ["two_horizons", "two_horizons_b", "two_batches"])
def test_published_tables_of_two_sizes_are_two_ladders(name: str) -> None:
    with pytest.raises(BadInput, match="takes those alike") as caught:
        grid(CASES / f"{name}.csv")
    assert "ignore=" not in str(caught.value)


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared tables")
def test_a_sheet_as_it_comes_is_read_and_what_was_done_is_said() -> None:
    sheet = grid_of(ladder_runs(read(CASES / "spreadsheet.csv")), GridOptions())
    assert [curve.size.width for curve in sheet.curves] == [128, 256, 512, 1024]
    said = " ".join(map(str, sheet.notes))
    for part in ("comment", "2 empty rows and 2 remarks", "commas between thousands", "crashed"):
        assert part in said
    assert sheet.runs == 63 and sheet.seeds >= 2
