"""How strongly two hyperparameters are coupled: the u-muP paper's transfer error of their grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweeper.search.line import line_optimum

Rows = Sequence[Sequence[float]]
"""Losses in nats: one row for each value of the first hyperparameter, +inf where it diverged."""


def row_optima(values: Sequence[float], rows: Rows) -> list[float | None]:
    """The value (one of `values`, the columns') of every row's least loss; of equals the middle.

    None for a row without a finite loss.
    """
    lines = [dict(zip(values, row, strict=True)) for row in rows]
    return [line_optimum(line) if math.isfinite(min(line.values())) else None for line in lines]


def transfer_error(rows: Rows) -> float:
    """Mean loss by taking a row's, or column's, optimum from another one (nats, at least 0).

    u-muP paper, F.1 and the captions of Figures 10 and 11: the loss of row r at the argmin of
    row q, above the least loss of row r, averaged over all r and q that differ; likewise with
    rows and columns exchanged, and the mean of the two. 0 when no optimum depends on the other
    hyperparameter. It measures the flatness of the optimum too (the paper's own remark).

    The paper does not say what a diverged trial counts: here, the largest finite loss of the
    grid. A row without a finite loss has no optimum and is left out. NaN when fewer than two
    rows, or than two columns, have one.
    """
    finite = [loss for row in rows for loss in row if math.isfinite(loss)]
    if not finite:
        return math.nan
    columns = list(zip(*rows, strict=True))
    return (_row_transfer_error(rows, max(finite)) + _row_transfer_error(columns, max(finite))) / 2


def _row_transfer_error(rows: Rows, max_loss: float) -> float:
    """The transfer error from row to row, a larger loss taken for `max_loss`."""
    usable = [row for row in rows if math.isfinite(min(row))]
    columns = [column for column in row_optima(range(len(rows[0])), usable) if column is not None]
    errors = [
        min(row[int(column)], max_loss) - min(row)
        for i, row in enumerate(usable)
        for j, column in enumerate(columns)
        if i != j
    ]
    return sum(errors) / len(errors) if errors else math.nan
