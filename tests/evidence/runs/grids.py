"""Tables of runs made up: curves with known optima, a row a run."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]

from sweeper.evidence.runs.grid import Grid, GridOptions, grid_of, ladder_runs
from sweeper.evidence.runs.read import read

WIDTHS = (128, 256, 512, 1024)
ETAS = tuple(np.arange(-10.0, -3.9, 0.5))


def runs(
    optima: Sequence[float] = (-7.0, -7.0, -7.0, -7.0),
    *,
    widths: Sequence[int] = WIDTHS,
    etas: Sequence[float] = ETAS,
    seeds: int = 3,
    noise: float = 0.002,
    curvature: float = 0.08,
) -> pandas.DataFrame:
    """A parabola around each width's optimum (log2), with the columns that others have."""
    random, rows = np.random.default_rng(0), []
    for width, optimum in zip(widths, optima, strict=True):
        floor = 3.0 + 20 / width
        offsets = random.normal(0, noise, seeds)
        for eta, seed in product(etas, range(seeds)):
            loss = floor + curvature * (eta - optimum) ** 2 + offsets[seed]
            loss += random.normal(0, noise)
            rows.append({"n_embd": width, "lr": 2.0**eta, "seed": seed, "val_loss": loss})
    return pandas.DataFrame(rows)


def grid(source: Any, columns: str = "", ignore: Sequence[str] = (), **options: Any) -> Grid:
    table = ladder_runs(read(source, columns=columns, ignore=ignore))
    return grid_of(table, GridOptions(**options))
