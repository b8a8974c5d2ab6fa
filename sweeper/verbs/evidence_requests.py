"""What the verbs take that answer from runs that are there: see `requests.py`, which knows none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sweeper.records import Bounds
from sweeper.verbs.requests import (
    AT_LEAST_ONE,
    POSITIVE,
    STUDY,
    TUNE,
    ConfigDir,
    Flag,
    Hours,
    Request,
    Root,
    Study,
    ToDepth,
    Trust,
)

COUNT = Bounds(least=1, below=1e30)
Where = Annotated[str, Flag("Take these rows alone, as in 'optimizer == \"muon\"'.")]
Ignore = Annotated[
    str | tuple[str, ...], Flag("Columns that may differ between runs: 'host,lr_min'.")
]
Draws = Annotated[int, Bounds(least=100, most=100_000), Flag("Of the bootstrap.")]


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Request, panel=STUDY):
    """Which change wins: variants at small sizes carried to a target, or studies ranked.

    sweeper compare runs.csv --by optimizer --baseline adamw --to-params 1.2e9 --to-tokens 2.4e10

    Of validated studies at equal compute: loss at the transferred and the re-tuned eta over width,
    robustness, and what tuning cost. With --settle, after the names: settings to change, as
    launcher.workers=2. Trains with --settle alone.
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
            "Its width; of studies: predict there how much compute the best saves, or with "
            "{settle} train until it is known which wins there."
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
        bool, Flag("Train seeds at each study's optimum, until it is decided which is the best.")
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
    root: Root = None


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
    to_params: Annotated[float | None, POSITIVE, Flag("Parameters of the run to come.")] = None
    to_tokens: Annotated[float | None, POSITIVE, Flag("Its tokens.")] = None
    flops: Annotated[float | None, POSITIVE, Flag("A budget: its best size and tokens.")] = None
    flops_per_second: Annotated[
        float | None, POSITIVE, Flag("What your machines compute, for the hours.")
    ] = None
    huber: Annotated[
        float | None,
        POSITIVE,
        Flag("Huber's threshold on log loss, by the residuals if not given."),
    ] = None
    form: Annotated[str | None, Flag("additive or coupled alone; averaged if not given.")] = None
    floor: Annotated[
        float | None, POSITIVE, Flag("The floor E, where you know it; fitted if not given.")
    ] = None
    exponent: Annotated[
        str | Mapping[str, float],
        Flag("Exponents that you know, as in 'alpha=0.34,beta=0.28' or 'gamma=0.15'."),
    ] = ""
    draws: Draws = 1000
    seed: Annotated[int, Bounds(least=0), Flag("Of the bootstrap.")] = 0
    out: Annotated[Path | None, Flag("Where to write; <root>/predictions/FILE if not given.")] = (
        None
    )
    root: Root = None
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class FollowRequest(Request, panel=TUNE):
    r"""Follow a large run: is it on the course that was predicted? Exit code 3 where it is not.

    sweeper follow --prediction prediction.json --metric jsonl:log.jsonl:loss --run runs/big
    sweeper follow --band seeds/ --metric 'step (?P<step>\d+) loss (?P<loss>\S+)' --run big.log
    """

    metric: Annotated[
        str,
        Flag(
            "Where the training loss is: a regular expression with (?P<step>...) and "
            "(?P<loss>...), jsonl:FILE:KEY, csv:FILE:COLUMN, tensorboard:TAG, wandb:KEY, or "
            "wandb:ENTITY/PROJECT/RUN:KEY of a server.",
            metavar="SOURCE",
        ),
    ]
    prediction: Annotated[
        Path | None,
        Flag("The prediction of a study, prediction.json, as predict wrote it.", metavar="FILE"),
    ] = None
    band: Annotated[
        Any,
        Flag(
            "Earlier runs in place of a prediction: a folder of logs or runs, a table with a row a "
            "step, wandb:ENTITY/PROJECT, a study.",
            metavar="RUNS",
        ),
    ] = None
    columns: Annotated[
        str | Mapping[str, str],
        Flag("Which column of that table is what, as in 'run=seed,loss=val_loss,params=N'."),
    ] = ""
    where: Where = ""
    run: Annotated[Path, Flag("The run's log, or the folder it writes to.", metavar="PATH")] = (
        Path()
    )
    lr: Annotated[
        str,
        Flag(
            "Where its learning rate is, to check the schedule; a pattern has (?P<lr>...).",
            metavar="SOURCE",
        ),
    ] = ""
    steps: Annotated[
        int | None, Flag("Of the whole run; its tokens at the ladder's batch if not given.")
    ] = None
    alarm: Annotated[float, Flag("The chance of ever calling a run off that is on course.")] = 0.01
    spike_steps: Annotated[
        int | None, Flag("A spike returns within these; 1 % of the run if not given.")
    ] = None
    once: Annotated[bool, Flag("Read what there is, answer and end: for cron.")] = False
    every: Annotated[float, POSITIVE, Flag("Seconds between two looks.")] = 30.0
    measured: Annotated[
        float | None, Flag("The loss at the end, where the prediction is of held-out data.")
    ] = None
    out: Annotated[Path | None, Flag("Where to write; beside the prediction if not given.")] = None
    ledger: Annotated[
        Path | None,
        Flag(
            "The ledger of outcomes; predictions.md beside the prediction's folder.", metavar="FILE"
        ),
    ] = None


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
            "Along what: width, depth, batch_size, steps, tokens, params, or size for several; "
            "what differs if not given. Over batch the critical one is told, too."
        ),
    ] = None
    where: Where = ""
    ignore: Ignore = ""
    base: Annotated[float | None, Flag("The size tuned at; the smallest if not given.")] = None
    eta: Annotated[
        float | None, Flag("The transferred learning rate; the base's best if not given.")
    ] = None
    noise: Annotated[
        float | None, Flag("A run's standard deviation in nats, where one seed shows none.")
    ] = None
    diverged: Annotated[float | None, Flag("A loss above this is of a run that diverged.")] = None
    max_shift: Annotated[float, Flag("Octaves within which a size holds.")] = 1.0
    max_loss_gap: Annotated[float, Flag("The fraction of the loss within which it holds.")] = 0.01
    each: Annotated[
        bool, Flag("Of settings varied one at a time around a point: carry, retune or leave each.")
    ] = False
    strict: Annotated[bool, Flag("Exit with 3 unless the verdict is that it holds.")] = False
    out: Annotated[Path | None, Flag("Where to write; <root>/judged/FILE if not given.")] = None
    root: Root = None


def columns_text(columns: Any) -> str:
    """Roles and columns as a text, `width=n_embd,loss=val_loss`."""
    if isinstance(columns, str):
        return columns
    return ",".join(f"{role}={column}" for role, column in columns.items())


def ignored(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Columns that may differ, one by one."""
    words = names.split(",") if isinstance(names, str) else names
    return tuple(filter(None, (word.strip() for word in words)))
