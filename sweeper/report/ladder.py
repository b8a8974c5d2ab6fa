"""A ladder as it fills, for the terminal and the page: a row a size, a column a point."""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import fmean

from sweeper.stats.ladder import LADDER_AXES, LadderPoint, LadderSize, LadderSoFar
from sweeper.table import Cell, Column, Table

WAITS = "-"
LATER = "·"
LEGEND = (
    "A number: the mean loss of a point whose runs have all ended; * the least of a row that is "
    f"full. 2/4: runs that have ended, of those planned. {WAITS}: none has."
)


def ladder_table(ladder: LadderSoFar) -> Table:
    """What is measured of every point, by size and log2 of the hyperparameter."""
    sizes = sorted({*(point.size for point in ladder.points), *ladder.later})
    axes = [key for key in LADDER_AXES if len({getattr(size, key) for size in sizes}) > 1]
    axes = axes or ["width"]
    values = sorted({round(point.value, 6) for point in ladder.points})
    found = {(point.size, round(point.value, 6)): point for point in ladder.points}
    # Where a terminal is narrow the outermost columns go first.
    middle = (len(values) - 1) / 2
    columns = [
        Column(f"{value:g}", importance=round(100 - abs(index - middle) * 2))
        for index, value in enumerate(values)
    ]
    head = axes[0].replace("_", " ") if len(axes) == 1 else "size"
    done = sum(len(point.losses) for point in ladder.points)
    runs = sum(point.runs for point in ladder.points)
    title = f"The ladder: {done} of {runs} runs, by log2 {ladder.hyperparameter}"
    legend = [LEGEND, *[f"Sizes whose row is empty ({LATER}) come later."] * bool(ladder.later)]
    table = Table(title, [Column(head, left=True), *columns], legend=legend)
    for size in sizes:
        row = [found.get((size, value)) for value in values]
        known = [point for point in row if point]
        whole = bool(known) and all(point.complete for point in known)
        least = min(map(_mean, known)) if whole else math.nan
        if size in ladder.later:
            table.add(_label(size, axes), *(Cell(math.nan, LATER) for _ in row))
            continue
        table.add(_label(size, axes), *(_cell(point, least) for point in row))
    return table


def _label(size: LadderSize, axes: list[str]) -> str:
    if len(axes) == 1:
        return str(getattr(size, axes[0]))
    return " ".join(f"{key[0]}{value}" for key, value in asdict(size).items() if key in axes)


def _mean(point: LadderPoint) -> float:
    """+inf where a run diverged or failed."""
    mean = fmean(point.losses)
    return math.inf if math.isnan(mean) else mean


def _cell(point: LadderPoint | None, least: float) -> Cell | None:
    if point is None:
        return None
    if not point.complete:
        done = len(point.losses)
        return Cell(math.nan, f"{done}/{point.runs}" if done else WAITS)
    mean = _mean(point)
    if math.isinf(mean):
        return Cell(mean, "div." if math.inf in point.losses else "failed")
    return Cell(mean, f"{mean:.3f}{'*' if mean == least else ' '}")
