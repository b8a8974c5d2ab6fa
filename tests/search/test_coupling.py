"""The u-muP paper's transfer error, on surfaces whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.search.grids import row_optima, transfer_error

LOSSES = st.floats(-5, 5)
EIGHTHS = st.integers(-40, 40).map(lambda count: count / 8)
"""Losses with many equals, which 4 * loss + 3 keeps exactly."""


@st.composite
def grids(draw: st.DrawFn, losses: st.SearchStrategy[float], unique: bool) -> list[list[float]]:
    """Losses of 2 to 5 rows and columns; some diverged, but not all of a row or column."""
    rows, columns = draw(st.integers(2, 5)), draw(st.integers(2, 5))
    cells = rows * columns
    drawn = iter(draw(st.lists(losses, min_size=cells, max_size=cells, unique=unique)))
    diverged = draw(st.sets(st.integers(0, cells - 1)))
    for i in range(max(rows, columns)):  # through every row and every column
        diverged.discard(i % rows * columns + i % columns)
    table = [[next(drawn) for _ in range(columns)] for _ in range(rows)]
    for cell in diverged:
        table[cell // columns][cell % columns] = math.inf
    return table


@given(st.lists(LOSSES, min_size=2, max_size=6), st.lists(LOSSES, min_size=2, max_size=6))
def test_a_separable_surface_has_none(rows: list[float], columns: list[float]) -> None:
    error = transfer_error([[a + b for b in columns] for a in rows])
    assert error == pytest.approx(0, abs=1e-12)


def test_a_sheared_bowl_by_hand() -> None:
    """(x + y)^2 on -1, 0, 1: every row's optimum lies one column beside its neighbour's.

    Rows x = -1, 0, 1 have their optima at y = 1, 0, -1, all of loss 0. Of the six ordered pairs
    of rows, four are neighbours, off by 1, and two are off by 2: (4 x 1 + 2 x 4) / 6 = 2. Columns
    are the same.
    """
    losses = [[float((x + y) ** 2) for y in (-1, 0, 1)] for x in (-1, 0, 1)]
    assert transfer_error(losses) == pytest.approx(2)


def test_rows_and_columns_both_count() -> None:
    """Rows: optima 0 and 1, off by 3 and 1, mean 2. Columns: optima in row 0 both, nothing."""
    assert transfer_error([[0.0, 1.0], [5.0, 2.0]]) == pytest.approx((2 + 0) / 2)


def test_a_diverged_run_counts_as_the_largest_finite_loss() -> None:
    """Rows: row 0 at column 1 is +inf, taken as 5: 5; row 1 at column 0: 3. Columns: 3 and 5."""
    assert transfer_error([[0.0, math.inf], [5.0, 2.0]]) == pytest.approx(((5 - 0) + (5 - 2)) / 2)


@pytest.mark.parametrize(
    "losses",
    [
        [[math.inf, math.inf], [math.inf, math.inf]],
        [[1.0, 2.0], [math.inf, math.inf]],
        [[1.0, math.inf], [2.0, math.inf]],
    ],
)
def test_nothing_can_be_told_of_one_row_or_column(losses: list[list[float]]) -> None:
    assert math.isnan(transfer_error(losses))


def test_optima_of_rows() -> None:
    rows = [[3.0, 1.0, 2.0], [1.0, 1.0, 1.0], [math.inf] * 3, [math.inf, math.inf, 9.0]]
    assert row_optima((-2.0, 0.0, 2.0), rows) == [0.0, 0.0, None, 2.0]


@given(grids(LOSSES, unique=True))
def test_against_a_plain_reading_of_the_sentence(losses: list[list[float]]) -> None:
    """Every row and column has a single least value: ties are a matter of taste."""
    table = np.array(losses)
    filled = np.where(np.isfinite(table), table, table[np.isfinite(table)].max())
    means = []
    for side, raw in ((filled, table), (filled.T, table.T)):
        best, n = raw.argmin(1), len(side)
        means.append(
            np.mean(
                [side[r, best[q]] - side[r, best[r]] for r in range(n) for q in range(n) if q != r]
            )
        )
    assert transfer_error(losses) == pytest.approx(np.mean(means))


@given(grids(EIGHTHS, unique=False))
def test_laws(losses: list[list[float]]) -> None:
    """Never negative; the axes' order does not matter; it scales as the loss, without its zero."""
    error = transfer_error(losses)
    assert error >= 0
    assert transfer_error(list(zip(*losses, strict=True))) == pytest.approx(error)
    moved = transfer_error([[4 * loss + 3 for loss in row] for row in losses])
    assert moved == pytest.approx(4 * error)
