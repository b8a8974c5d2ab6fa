"""Sheets as people keep them: every way of writing one grid gives the numbers of the plain one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.runs.grid import ladder_runs
from sweeper.runs.read import read

ROWS = [
    (width, lr, seed, round(4 - 0.1 * i + 0.2 * (j - 1) ** 2 + 0.01 * j + 0.001 * seed, 4))
    for i, width in enumerate((256, 512, 1024))
    for j, lr in enumerate((0.0006, 0.0012, 0.0024))
    for seed in (0, 1)
]


def sheet(
    width: Callable[[int], object] = str,
    lr: Callable[[float], object] = repr,
    loss: Callable[[float], object] = repr,
    head: str = "width,lr,seed,loss\n",
    separator: str = ",",
) -> str:
    cells = ((width(w), lr(eta), seed, loss(value)) for w, eta, seed, value in ROWS)
    rows = (separator.join(map(str, row)) for row in cells)
    return head.replace(",", separator) + "\n".join(rows) + "\n"


def comma(value: float) -> str:
    return repr(value).replace(".", ",")


def merged() -> str:
    last, lines = 0, ["width,lr,seed,loss"]
    for width, lr, seed, loss in ROWS:
        lines.append(f"{'' if width == last else width},{lr},{seed},{loss}")
        last = width
    return "\n".join(lines)


SHEETS = {
    "decimal commas, points between thousands": sheet(
        lambda w: f"{w:,}".replace(",", "."), comma, comma, separator=";"
    ),
    "spaces between thousands": sheet(lambda w: f"{w:,}".replace(",", "\u202f")),
    "a plain space between thousands": sheet(lambda w: f"{w:,}".replace(",", " ")),
    "apostrophes between thousands": sheet(lambda w: f"{w:,}".replace(",", "'")),
    "texts of a spreadsheet": sheet(lambda w: f"'{w}"),
    "powers of ten": sheet(lr=lambda eta: f"{eta * 1e4:g}\u00d710\u207b\u2074"),
    "typed powers of ten": sheet(lr=lambda eta: f"{eta * 1e4:g} x 10^-4"),
    "percent": sheet(lr=lambda eta: f"{100 * eta:g}%"),
    "an error behind": sheet(loss=lambda value: f"{value} \u00b1 0.01"),
    "an error in brackets": sheet(loss=lambda value: f"{value} (0.01)"),
    "footnotes": sheet(loss=lambda value: f"{value}*" if value > 4 else value),
    "a title": "Sweep of autumn\n" + sheet(),
    "a padded title and an empty row": '"Sweep, by Jo",,,\n,,,\n' + sheet(),
    "a title above semicolons": "Sweep;;;\n" + sheet(separator=";"),
    "a header above": sheet(head="model,optimizer,run,result\nwidth,lr,seed,loss\n"),
    "units": sheet(head="width,lr,seed,loss\n(neurons),,,(nats)\n"),
    "Excel's separator": sheet(head="sep=;\nwidth,lr,seed,loss\n", separator=";"),
    "a header again": sheet() + "width,lr,seed,loss\n",
    "bars": sheet(head="width,lr,seed,loss\n---,---,---,:---\n", separator="|")
    .replace("\n", "|\n|")
    .removesuffix("|"),
    "merged cells": merged(),
    "letters": sheet(lambda w: f"w{w}"),
}


def values(path: Path) -> np.ndarray:
    runs = ladder_runs(read(path))
    columns = [runs.columns[role] for role in ("width", "eta", "seed", "loss")]
    return np.array([runs.numbers(column) for column in columns]).T


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet_has_the_numbers_that_it_means(name: str, tmp_path: Path) -> None:
    text = SHEETS[name]
    path = tmp_path / "runs.csv"
    path.write_text("|" + text if name == "bars" else text, encoding="utf-8")
    np.testing.assert_allclose(values(path), ROWS, rtol=1e-12)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_letters_of_spreadsheets(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    text = sheet().replace("\n", "\r\n")
    path.write_bytes(f"# Gr\u00f6\u00dfe\r\n{text}".encode(encoding))
    np.testing.assert_allclose(values(path), ROWS)


def test_a_title_in_a_workbook_is_none_of_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    rows = [["Sweep, by Jo", *[None] * 3], [None] * 4, ["width", "lr", "seed", "loss"], *ROWS]
    pandas.DataFrame(rows).to_excel(tmp_path / "sheet.xlsx", header=False, index=False)
    frame = read(tmp_path / "sheet.xlsx").frame
    assert [*frame.columns] == ["width", "lr", "seed", "loss"]
    np.testing.assert_allclose(frame.to_numpy(dtype=float), ROWS)


def test_what_stands_in_place_of_a_loss(tmp_path: Path) -> None:
    """A word of divergence is one, a word of an end that was none is a run that was not made."""
    losses = {ROWS[-1][3]: "diverged!", ROWS[0][3]: "OOM", ROWS[2][3]: "#N/A"}
    path = tmp_path / "runs.csv"
    path.write_text(sheet(loss=lambda value: losses.get(value, value)))
    runs = ladder_runs(read(path))
    numbers, empty = runs.numbers("loss"), runs.left_empty("loss")
    assert np.isposinf(numbers[-1]) and np.isnan(numbers[[0, 2]]).all()
    assert empty[0] and not empty[-1] and int(np.isfinite(numbers).sum()) == len(ROWS) - 3


def test_points_are_decimal_where_nothing_says_otherwise(tmp_path: Path) -> None:
    """1.024 in a sheet with decimal points is one and a bit, and no width."""
    path = tmp_path / "runs.csv"
    path.write_text(sheet(lambda w: f"{w:,}".replace(",", ".")))
    assert values(path)[-1, 0] == 1.024
