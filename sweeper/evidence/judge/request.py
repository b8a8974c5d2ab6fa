"""What `sweeper judge` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from sweeper.evidence.flags import COUNT, Ignore, Where
from sweeper.verbs.requests import (
    AT_LEAST_ONE,
    TUNE,
    Flag,
    Request,
)


@dataclass(frozen=True, kw_only=True)
class JudgeRequest(Request, panel=TUNE):
    """Judge a grid that you have: does its learning rate transfer? Trains nothing.

    sweeper judge runs.csv --columns 'width=n_embd,eta=lr,loss=val_loss' --to-width 4096
    sweeper judge logs/ --series val/loss

    Of runs over models and horizons it tells the rate, and the batch where that was varied:
    sweeper judge runs.csv --to-params 7e9 --to-tokens 1.4e11
    """

    source: Annotated[
        Any,
        Flag(
            "A table, a run a row: CSV, TSV, JSON, Parquet, Excel; a folder of TensorBoard or "
            "offline W&B runs; wandb:ENTITY/PROJECT; an Optuna storage's URL; a study's folder.",
            metavar="RUNS",
            positional=True,
        ),
    ] = None
    study: Annotated[
        str | None,
        Flag(
            "A study of ours, in place of RUNS; of an Optuna storage, which of its studies ('w*' "
            "for several).",
            metavar="NAME",
        ),
    ] = None
    series: Annotated[
        str,
        Flag(
            "Which series of a run is its loss, a tag or a key; or jsonl:FILE:KEY, "
            "csv:FILE:COLUMN of a file in every run's folder."
        ),
    ] = ""
    window: Annotated[
        float, Flag("The last share of its steps that it is averaged over; 0: last value.")
    ] = 0.1
    columns: Annotated[
        str | Mapping[str, str],
        Flag(
            "Which column is what, as in 'width=n_embd,eta=lr,loss=val_loss,seed=seed'; also "
            "depth, batch_size, steps, tokens and first. What is not named is found by its usual "
            "name."
        ),
    ] = ""
    to_width: Annotated[
        int | None, AT_LEAST_ONE, Flag("The target's width, or its size along {axis...}.")
    ] = None
    to_params: Annotated[
        float | None, COUNT, Flag("Parameters of a run to come: its learning rate and batch.")
    ] = None
    to_tokens: Annotated[float | None, COUNT, Flag("Its tokens.")] = None
    to_batch: Annotated[
        float | None, COUNT, Flag("Its batch, where you choose it: the rate that goes with it.")
    ] = None
    axis: Annotated[
        str | None,
        Flag(
            "Along what: width, depth, batch_size, steps, tokens, params, any other column of "
            "whole numbers by its name, or size for several; what differs if not given. Over "
            "batch the critical one is told, too."
        ),
    ] = None
    where: Where = ""
    ignore: Ignore = ""
    eta: Annotated[
        float | None, Flag("The transferred learning rate; the base's best if not given.")
    ] = None
    noise: Annotated[
        float | None, Flag("A run's standard deviation in nats, where one seed shows none.")
    ] = None
    diverged: Annotated[float | None, Flag("A loss above this is of a run that diverged.")] = None
    each: Annotated[
        bool, Flag("Of settings varied one at a time around a point: carry, retune or leave each.")
    ] = False
    strict: Annotated[bool, Flag("Exit with 3 unless the verdict is that it holds.")] = False
