"""Tables of runs that others made: read from every kind of file, their columns found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.errors import BadInput, ConfigError
from sweeper.runs.loss_runs import law_runs, loss_runs_of
from sweeper.runs.read import read
from tests.decide.test_loss import predicted, surface


def test_columns_are_found_by_name_or_told() -> None:
    frame = surface().rename(columns={"params": "n_params", "loss": "eval/loss"})
    assert law_runs(read(frame)).columns == {
        "params": "n_params",
        "tokens": "tokens",
        "loss": "eval/loss",
        "seed": "seed",
    }
    other = surface().rename(columns={"params": "Size of model"})
    with pytest.raises(ConfigError) as caught:
        predicted(other)
    assert caught.value.key == "columns"
    assert predicted(other, columns="params=Size of model").inputs.runs == 32
    for wrong in ("size=params", "params=nothing", "params"):
        with pytest.raises(ConfigError) as caught:
            predicted(surface(), columns=wrong)
        assert caught.value.key == "columns"


def test_a_filter_takes_rows_or_says_why_not() -> None:
    assert predicted(surface(), where="seed == 0").inputs.runs == 16
    for wrong in ("seed ==", "nothing > 3", "seed > 7", "seed", "loss", "3", "loss.sum()", "True"):
        with pytest.raises(ConfigError) as caught:
            predicted(surface(), where=wrong)
        assert caught.value.key == "where"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json"])
def test_tables_are_read_from_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    path, frame = tmp_path / f"runs{suffix}", surface()
    match suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".tsv":
            frame.to_csv(path, index=False, sep="\t")
        case _:
            frame.to_json(path, orient="records", lines=suffix == ".jsonl")
    assert len(loss_runs_of(law_runs(read(path)))) == 32


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", ""), ("a.json", "{"), ("a.txt", "x"), ("b.csv", None)]
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], *(line + ",9" for line in lines[1:])],
        lambda lines: [lines[0] + ",loss", *(line + ",9" for line in lines[1:])],
    ],
)
def test_what_would_be_misread_is_refused(
    tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    path = tmp_path / "runs.csv"
    lines = surface().to_csv(index=False).splitlines()
    path.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(BadInput):
        read(path)


def test_spreadsheets_with_semicolons_and_decimal_commas_are_read(tmp_path: Path) -> None:
    path, frame = tmp_path / "runs.csv", surface()
    frame.to_csv(path, index=False, sep=";")
    assert "semicolons" in read(path).notes[0]
    frame.to_csv(path, index=False, sep=";", decimal=",")
    source = read(path)
    assert "decimal commas" in source.notes[1]
    assert [*source.numbers("loss")] == [*frame["loss"]]


def test_a_columns_name_may_have_commas_and_equals_signs() -> None:
    for name in ("N, total", "a=b", "N;'x'", "größe"):
        frame = surface().rename(columns={"params": name})
        runs = law_runs(read(frame, columns=f"params={name},loss=loss"))
        assert runs.columns["params"] == name


def test_truth_values_equal_losses_and_columns_twice_are_refused() -> None:
    twice = surface()
    twice.columns = ["params", "loss", "seed", "loss"]
    for frame in (surface().assign(loss=True), surface().assign(loss=3.0), twice):
        with pytest.raises(BadInput):
            predicted(frame)
