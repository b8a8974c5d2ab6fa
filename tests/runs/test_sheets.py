"""Sheets as people keep them: every way of writing one grid gives the numbers of the plain one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import BadInput
from sweeper.runs.grid import ladder_runs
from sweeper.runs.loss_runs import law_runs, loss_runs_of
from sweeper.runs.numbers import LETTERED, in_numbers, number_of, with_points
from sweeper.runs.read import read
from sweeper.runs.run import Runs, log2_of
from tests.refusals import raises_config_error

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
    "units above decimal commas": sheet(
        lr=comma, loss=comma, head="width,lr,seed,loss\n,-,-,nats\n", separator=";"
    ),
    "Excel's separator": sheet(head="sep=;\nwidth,lr,seed,loss\n", separator=";"),
    "a header again": sheet() + "width,lr,seed,loss\n",
    "bars": sheet(head="width,lr,seed,loss\n---,---,---,:---\n", separator="|")
    .replace("\n", "|\n|")
    .removesuffix("|"),
    "merged cells": merged(),
    "letters": sheet(lambda w: f"w{w}"),
    "decimal commas in quotes": sheet(
        lr=lambda eta: f'"{comma(eta)}"', loss=lambda v: f'"{comma(v)}"'
    ),
    "units behind numbers": sheet(lambda w: f"{w / 1024}k params", loss=lambda v: f"{v} nats")
    .replace("0.25k", "0.256k")
    .replace("0.5k", "0.512k")
    .replace("1.0k", "1.024k"),
    "a title in brackets": sheet(head="width (d_model),lr,seed,val loss (nats)\n"),
    "a mean below": sheet() + f"average,,,{np.mean([row[3] for row in ROWS]):.4f}\n",
    "a sum below": sheet() + ",".join(f"{sum(column):.6g}" for column in zip(*ROWS, strict=True)),
    "a sum in another language": sheet(separator=";") + "Gesamt;0,025;9;70,8\n",
    "a sum without a word": sheet() + f",{sum(row[1] for row in ROWS):.5f},,"
    f"{sum(row[3] for row in ROWS):.4f}\n",
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


def test_a_comma_in_every_loss_is_decimal_and_in_every_width_is_not(tmp_path: Path) -> None:
    """3,901 is no loss of thousands where each loss is written so; 1,024 is a width."""
    path = tmp_path / "runs.csv"
    path.write_text(
        sheet(lambda w: f'"{4 * w:,}"', loss=lambda value: f'"{comma(round(value, 3)):0<5}"')
    )
    read_back = values(path)
    np.testing.assert_allclose(read_back[:, 3], [round(row[3], 3) for row in ROWS])
    np.testing.assert_allclose(read_back[:, 0], [4 * row[0] for row in ROWS])


@pytest.mark.parametrize("separator", [";", ","])
def test_a_word_among_losses_with_decimal_commas_makes_no_thousands_of_them(
    separator: str, tmp_path: Path
) -> None:
    """Of 3,412 beside "diverged" nothing says that it is three thousand."""
    quote = '"' if separator == "," else ""
    head = f"width{separator}lr{separator}seed{separator}loss"
    rows = [
        f"{w}{separator}{quote}{comma(lr)}{quote}{separator}{seed}{separator}"
        + (f"{quote}{comma(round(loss, 3)):0<5}{quote}" if n else "diverged")
        for n, (w, lr, seed, loss) in enumerate(ROWS)
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([head, *rows]))
    losses = values(path)[:, 3]
    assert np.isposinf(losses[0])
    # A condition reads them alike.
    assert len(read(path).only("loss < 3.9 and lr > 0.001")) == 2
    np.testing.assert_allclose(losses[1:], [round(row[3], 3) for row in ROWS[1:]])


def test_a_comma_in_losses_is_decimal_where_the_others_lie_around_it() -> None:
    assert with_points(["3,412", "3.1", 2.75, "OOM"], of_losses=True) == {"3,412": "3.412"}
    # A perplexity of a run that diverged: read as 1.7 it would be the best of all.
    assert with_points(["1,707", "36.61", "29.96"], of_losses=True) is None
    assert with_points(["1,024", "512"], of_losses=False) is None
    # What a letter or a unit stands behind is a number, too.
    assert with_points(["0,2B", "1,6 B", "3B"], of_losses=False) == {
        "0,2B": "0.2B",
        "1,6 B": "1.6 B",
    }
    assert with_points(["1,500M", "2,250M"], of_losses=False) is None
    assert number_of("Mar-12")[0] is None and number_of("d12") == (12.0, LETTERED)


def test_a_rate_with_a_point_has_one_in_a_sheet_of_commas(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"{w};{10 * lr:.3f};{s};{comma(round(loss, 3))}" for w, lr, s, loss in ROWS]
    path.write_text("\n".join(["width;lr;seed;loss", *rows]))
    np.testing.assert_allclose(values(path)[:, 1], [10 * row[1] for row in ROWS])


def test_a_row_called_min_is_no_run_where_runs_have_names(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"exp-{n},{w},{lr},{s},{loss}" for n, (w, lr, s, loss) in enumerate(ROWS)]
    least = [f"{word},{ROWS[0][0]},{ROWS[0][1]},0,2.5" for word in ("Min:", "max")]
    path.write_text("\n".join(["run,width,lr,seed,loss", *rows, *least]))
    np.testing.assert_allclose(values(path), ROWS)
    # Of a setting it is a value like others.
    pools = [row.replace("exp-", "min,") for row in rows]
    path.write_text("\n".join(["pool,run,width,lr,seed,loss", *pools]))
    assert len(values(path)) == len(ROWS)


def test_the_unit_of_a_rate_stands_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(sheet(lr=lambda eta: f"{1e3 * eta:g}", head="width,peak lr (1e-3),seed,loss\n"))
    log2, said, _ = log2_of(ladder_runs(read(path)), "peak lr (1e-3)")
    np.testing.assert_allclose(2**log2, [row[1] for row in ROWS])
    assert "0.001" in said
    path.write_text(sheet(head="width,peak lr (1e-3),seed,loss\n"))
    with raises_config_error("columns", "eta=peak lr (1e-3)"):
        log2_of(ladder_runs(read(path)), "peak lr (1e-3)")


def test_tokens_in_a_power_of_ten_by_their_name(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"params": [1e8, 2e8], "tokens (1e9)": [2.0, 4.0], "loss": [3.0, 2.9]})
    assert [*loss_runs_of(law_runs(read(frame))).tokens] == [2e9, 4e9]


def test_a_sheet_of_two_headers_is_read_by_a_prediction_too(tmp_path: Path) -> None:
    head = "model,,result,\nparams,tokens,val_loss,lr\n"
    path = tmp_path / "runs.csv"
    path.write_text(head + "100000000,2000000000,3.0,0.1\n200000000,4000000000,2.9,0.1\n")
    assert len(law_runs(read(path))) == 2


def test_texts_that_are_numbers_are_measured_and_no_kind() -> None:
    numbers = in_numbers(pandas.Series(["45.8 %", None, "46 %"]))
    assert [*numbers.dropna()] == [0.458, 0.46]
    for texts in (["v1", "v2"], ["lion", "0.1"], ["crashed", "1e-3"], [None, None]):
        assert in_numbers(pandas.Series(texts)).dtype.kind == "O"


def test_two_columns_that_brackets_tell_apart_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(sheet(loss=lambda value: f"{value - 1:.3f},{value}", head=TWO_LOSSES))
    with raises_config_error("columns"):
        ladder_runs(read(path))


TWO_LOSSES = "width,lr,seed,loss (train),loss (val)\n"


@pytest.mark.parametrize(
    "cells",
    [
        pandas.date_range("2024-03-12", periods=4),
        pandas.to_timedelta([1, 2, 3, 4], "D"),
        pandas.array([True, False, True, True], dtype="boolean"),
        pandas.Series(["3,412", "3,401", [1], "3,377"]),
    ],
    ids=["dates", "durations", "truth", "a list among commas"],
)
def test_what_pandas_would_make_numbers_of_is_refused(cells: Any) -> None:
    runs = Runs(pandas.DataFrame({"loss": cells}), "", "", columns={"loss": "loss"})
    with pytest.raises(BadInput, match="which is no number"):
        runs.numbers("loss")
