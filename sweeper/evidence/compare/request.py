"""What `sweeper compare` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sweeper.evidence.flags import COUNT, Ignore, Where
from sweeper.records import Bounds
from sweeper.verbs.requests import (
    AT_LEAST_ONE,
    STUDY,
    Flag,
    Hours,
    Request,
    Trust,
)


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Request, panel=STUDY):
    """Which change wins: variants that were run at small sizes, carried to a target.

    sweeper compare runs.csv --by optimizer --baseline adamw --to-params 1.2e9 --to-tokens 2.4e10

    Several tables, or studies, are a variant each. Without a target it is asked at the largest size
    that all have. With --settle, after the names: settings to change, as launcher.workers=2. Trains
    with --settle alone.
    """

    names: Annotated[
        tuple[str, ...],
        Flag(
            "Studies, two or more; or runs as judge takes them, of which a column names the "
            "variants.",
            metavar="SOURCE",
            positional=True,
            completes="study",
        ),
    ]
    by: Annotated[
        str | None, Flag("The column whose values are the variants; of several tables each is one.")
    ] = None
    baseline: Annotated[str | None, Flag("The variant that all others are compared with.")] = None
    to_params: Annotated[float | None, COUNT, Flag("Parameters of the run to come.")] = None
    to_tokens: Annotated[float | None, COUNT, Flag("Its tokens.")] = None
    to_width: Annotated[
        int | None,
        AT_LEAST_ONE,
        Flag("Its width; with {settle} studies are trained until it is known which wins there."),
    ] = None
    columns: Annotated[
        str | Mapping[str, str],
        Flag(
            "Which column is what, as in 'params=N,tokens=D,loss=val_loss'; also width, flops, "
            "eta, seed, throughput (tokens a second) and time. What is not named is found by its "
            "usual name."
        ),
    ] = ""
    where: Where = ""
    ignore: Ignore = ""
    floor: Annotated[
        float | None, Flag("Of the loss over compute, where you know it; fitted if not given.")
    ] = None
    exponent: Annotated[
        float | None,
        Bounds(least=1e-3, most=1),
        Flag("Of (loss - floor) over compute; fitted if not given."),
    ] = None
    error: Annotated[
        float,
        Bounds(least=1e-12, below=0.5),
        Flag("The chance that what has no effect is called better; many tries divide it."),
    ] = 0.05
    strict: Annotated[
        bool, Flag("Exit with 0 where one is better, 3 where all are worse, 4 where it is open.")
    ] = False
    anyway: Annotated[bool, Flag("Compare studies whose data, model or training differ.")] = False
    out: Annotated[Path | None, Flag("Where to write; <root>/comparisons/NAMES if not given.")] = (
        None
    )
    settle: Annotated[
        bool, Flag("Train runs at each study's optimum, until it is decided which is better.")
    ] = False
    at_width: Annotated[
        int | None,
        AT_LEAST_ONE,
        Flag("With {settle}: the width to train; else the widest that all ladders have."),
    ] = None
    budget: Annotated[
        int | None,
        AT_LEAST_ONE,
        Flag("With {settle}: at most so many runs; else 40 each.", metavar="RUNS"),
    ] = None
    hours: Hours = None
    detach: Annotated[bool, Flag("With {settle} on Slurm: submit what can be, and leave.")] = False
    dry_run: Annotated[bool, Flag("With {settle}: say what would run; train nothing.")] = False
    trust: Trust = False
