"""What `sweeper follow` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sweeper.evidence.flags import Where
from sweeper.verbs.requests import POSITIVE, TUNE, Flag, Request


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
            "Where its learning rate is: a jump of it is seen; a pattern has (?P<lr>...).",
            metavar="SOURCE",
        ),
    ] = ""
    steps: Annotated[
        int | None, Flag("Of the whole run; its tokens at the ladder's batch if not given.")
    ] = None
    alarm: Annotated[float, Flag("The chance of ever calling a run off that is on course.")] = 0.01
    once: Annotated[bool, Flag("Read what there is, answer and end: for cron.")] = False
    every: Annotated[float, POSITIVE, Flag("Seconds between two looks.")] = 30.0
    out: Annotated[Path | None, Flag("Where to write; beside the prediction if not given.")] = None
