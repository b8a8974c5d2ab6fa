"""The figure of a pairs search: a heat map for each pair of hyperparameters, with its optima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sweeper.report.documents import Document, number
from sweeper.report.drawing import FAINT, INK, LOSS_LABEL, STRIP, STYLE, WIDTH
from sweeper.search.coupling import row_optima

Losses = list[list[float]]
"""Rows, one for each value of the first hyperparameter; +inf where the run diverged."""

COLORS = colormaps["viridis_r"].resampled(24)
"""Bright is low. So few that the colour bar is drawn, not painted: a page shows no images."""
ROW: dict[str, Any] = {"marker": "o", "markersize": 7, "markerfacecolor": "white"}
COLUMN: dict[str, Any] = {
    "marker": "x",
    "markersize": 5,
    "markeredgewidth": 1.6,
    "color": "#e6550d",
}
BOTH: dict[str, Any] = {"markeredgecolor": INK, "linestyle": "none"}


@rc_context(STYLE)
def pairs_figure(search: Document) -> Figure:
    """Loss over the grid of every pair, all on one scale, with the optimum of each row and column.

    Separable hyperparameters have their rows' optima in one column, and the columns' in one row.
    """
    grids = [(grid, _losses(grid)) for grid in search.get("pairs") or ()]
    columns = min(3, max(1, len(grids)))
    rows = max(1, math.ceil(len(grids) / columns))
    figure = Figure(figsize=(WIDTH, 0.7 + 2.25 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    scale = _scale([losses for _, losses in grids])
    for ax, (grid, losses) in zip(panels, grids, strict=False):
        _panel(ax, grid, losses, scale)
    for ax in panels[len(grids) :]:
        ax.remove()
    if grids:
        shown = ScalarMappable(scale, COLORS)
        bar = figure.colorbar(shown, ax=panels[: len(grids)], shrink=0.8 / rows, extend="max")
        bar.set_label(LOSS_LABEL)
    _legend(figure, [losses for _, losses in grids])
    return figure


def _losses(grid: Document) -> Losses:
    """A grid's losses; what failed counts as diverged."""
    rows = [[number(loss) for loss in row] for row in grid["losses"]]
    return [[math.inf if math.isnan(loss) else loss for loss in row] for row in rows]


def _scale(every: Sequence[Losses]) -> Normalize:
    """From the least loss to where the optima can still be told apart, or the largest loss."""
    finite = [loss for losses in every for row in losses for loss in row if math.isfinite(loss)]
    if not finite:
        return Normalize(0.0, 1.0)
    low = min(finite)
    high = min(max(finite), low + 3 * (median(finite) - low))
    return Normalize(low, high if high > low else max(finite) + 1e-6)


def _panel(ax: Axes, grid: Document, losses: Losses, scale: Normalize) -> None:
    """One pair: the first hyperparameter upwards, the second to the right."""
    first, second = (list(map(number, values)) for values in grid["values_log2"])
    drawn = [[loss if math.isfinite(loss) else math.nan for loss in row] for row in losses]
    ax.set_facecolor(STRIP)
    ax.grid(visible=False)
    ax.pcolormesh(range(len(second)), range(len(first)), drawn, cmap=COLORS, norm=scale)
    ax.set_xticks(range(len(second)), [f"{value:.3g}" for value in second])
    ax.set_yticks(range(len(first)), [f"{value:.3g}" for value in first])
    ax.set(xlabel=grid["names"][1], ylabel=grid["names"][0])
    error = number(grid.get("transfer_error"))
    told = f"transfer error {error:.4f}" if math.isfinite(error) else "no transfer error"
    ax.set_title(told, fontsize=8)
    for row, best in enumerate(row_optima(range(len(second)), losses)):
        if best is not None:
            ax.plot(best, row, **BOTH, **ROW)
    for column, best in enumerate(row_optima(range(len(first)), list(zip(*losses, strict=True)))):
        if best is not None:
            ax.plot(column, best, linestyle="none", **COLUMN)
    for row, values in enumerate(losses):
        for column, loss in enumerate(values):
            if math.isinf(loss):
                ax.plot(column, row, "^", color=FAINT, markersize=4)


def _legend(figure: Figure, every: Sequence[Losses]) -> None:
    """What the marks mean."""
    handles = [
        Line2D([], [], label="optimum of a row", **BOTH, **ROW),
        Line2D([], [], label="optimum of a column", linestyle="none", **COLUMN),
    ]
    if any(math.isinf(loss) for losses in every for row in losses for loss in row):
        look: dict[str, Any] = {"marker": "^", "color": FAINT, "linestyle": "none"}
        handles.append(Line2D([], [], label="diverged", markersize=4, **look))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
