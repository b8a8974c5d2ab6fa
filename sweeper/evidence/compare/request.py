"""What `sweeper compare` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from sweeper.evidence.flags import COUNT, Where
from sweeper.records import Bounds
from sweeper.verbs.requests import (
    AT_LEAST_ONE,
    STUDY,
    Flag,
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
        Flag(
            "Its width; with {settle} studies are trained until it is known which wins there, at "
            "the widest that all ladders have if not given."
        ),
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
    ignore: Annotated[
        str | tuple[str, ...],
        Flag(
            "What may differ between runs, by its column; between studies, by its setting: "
            "'host,train.steps'."
        ),
    ] = ""
    fixed: Annotated[
        str | Mapping[str, float],
        Flag(
            "What you know of the loss over compute, E + c/compute^gamma, as in "
            "'E=1.6,gamma=0.09'; fitted if not given."
        ),
    ] = ""
    error: Annotated[
        float,
        Bounds(least=1e-12, below=0.5),
        Flag("The chance that what has no effect is called better; many tries divide it."),
    ] = 0.05
    strict: Annotated[
        bool, Flag("Exit with 0 where one is better, 3 where all are worse, 4 where it is open.")
    ] = False
    settle: Annotated[
        bool, Flag("Train runs at each study's optimum, until it is decided which is better.")
    ] = False
    budget: Annotated[
        int | str | None,
        Flag(
            "With {settle}: at most so many runs, or so many hours of runs, as in 12h; else 40 "
            "runs each.",
            metavar="RUNS",
        ),
    ] = None
    detach: Annotated[bool, Flag("With {settle} on Slurm: submit what can be, and leave.")] = False
    dry_run: Annotated[bool, Flag("With {settle}: say what would run; train nothing.")] = False
    trust: Trust = False
