"""What `sweeper predict` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from sweeper.evidence.flags import COUNT, Ignore
from sweeper.verbs.requests import (
    AT_LEAST_ONE,
    TUNE,
    Flag,
    Request,
    Study,
    ToDepth,
    Trust,
)


@dataclass(frozen=True, kw_only=True)
class PredictRequest(Request, panel=TUNE):
    """Predict the loss of a large run by the law of small ones, tried backwards. Trains nothing.

    sweeper predict --study mine --to-width 4096 --to-tokens 1e11
    sweeper predict runs.csv --to-params 7e9 --to-tokens 1.4e11
    """

    source: Annotated[
        Any,
        Flag(
            "A table of runs, one a row: CSV, TSV, JSON, Parquet, Excel; - is CSV from a pipe. "
            "Without it a study's runs.",
            metavar="RUNS",
            positional=True,
        ),
    ] = None
    study: Study = None
    to_width: Annotated[int | None, AT_LEAST_ONE, Flag("Width of a study's run to come.")] = None
    to_depth: ToDepth = None
    columns: Annotated[
        str | Mapping[str, str],
        Flag(
            "Which column is what, as in 'params=N,tokens=D,loss=val_loss'; also flops, run and "
            "seed. What is not named is found by its usual name."
        ),
    ] = ""
    where: Annotated[str, Flag("Take these rows alone, as in 'loss < 4'.")] = ""
    ignore: Ignore = ""
    curves: Annotated[
        Any,
        Flag(
            "Loss curves of earlier runs, for a band: a table with a row a step, or a tracker's.",
            metavar="RUNS",
        ),
    ] = None
    to_params: Annotated[float | None, COUNT, Flag("Parameters of the run to come.")] = None
    to_tokens: Annotated[float | None, COUNT, Flag("Its tokens.")] = None
    flops: Annotated[float | None, COUNT, Flag("A budget: its best size and tokens.")] = None
    fixed: Annotated[
        str | Mapping[str, float],
        Flag(
            "What you know of the law: its floor E and its exponents, as in "
            "'E=1.69,alpha=0.34,beta=0.28' or 'gamma=0.15'; fitted if not given."
        ),
    ] = ""
    trust: Trust = False
