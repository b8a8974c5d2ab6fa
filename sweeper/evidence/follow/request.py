"""What `sweeper follow` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sweeper.evidence.flags import Where
from sweeper.verbs.requests import TUNE, Flag, Request


@dataclass(frozen=True, kw_only=True)
class FollowRequest(Request, panel=TUNE):
    r"""Follow a large run: is it on the course that was predicted? Exit code 3 where it is not.

    sweeper follow --prediction prediction.json --metric jsonl:log.jsonl:loss --run runs/big
    sweeper follow --prediction seeds/ --metric '(?P<step>\d+) loss (?P<loss>\S+)' --run big.log
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
        Any,
        Flag(
            "The prediction.json of a study, as predict wrote it; or earlier runs: a folder of "
            "logs or runs, a table with a row a step, wandb:ENTITY/PROJECT, a study.",
            metavar="FILE",
        ),
    ]
    columns: Annotated[
        str | Mapping[str, str],
        Flag("Which column of a table is what, as in 'run=seed,loss=val_loss,params=N'."),
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
