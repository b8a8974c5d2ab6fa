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


INF = math.inf


@pytest.mark.parametrize(
    ("losses", "error"),
    [
        # (x + y)^2 on -1, 0, 1: rows have their optima at y = 1, 0, -1, all of loss 0. Of the six
        # ordered pairs of rows four are off by 1, two by 2: (4 x 1 + 2 x 4) / 6; so are columns.
        ([[4.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 4.0]], 2.0),
        # Rows: off by 3 and 1, mean 2. Columns: both optima in row 0, nothing.
        ([[0.0, 1.0], [5.0, 2.0]], (2 + 0) / 2),
        # What diverged counts as the largest finite loss. Rows: 5 and 3; columns: 3 and 5.
        ([[0.0, INF], [5.0, 2.0]], ((5 - 0) + (5 - 2)) / 2),
        # Nothing can be told of one row or column.
        ([[INF, INF], [INF, INF]], math.nan),
        ([[1.0, 2.0], [INF, INF]], math.nan),
        ([[1.0, INF], [2.0, INF]], math.nan),
    ],
)
def test_grids_by_hand(losses: list[list[float]], error: float) -> None:
    assert transfer_error(losses) == pytest.approx(error, nan_ok=True)


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
