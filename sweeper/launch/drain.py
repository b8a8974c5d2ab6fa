"""What a driver that died left behind: jobs that finished and were not recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from sweeper.launch.job import outcome_of
from sweeper.launch.launcher import Work
from sweeper.training import checkpoint
from sweeper.trial import Result


def drained(work: Work) -> Iterator[list[Result]]:
    """Results of wanted trials that jobs in the study's folder have left; then those jobs go.

    What failed is tried again, as is what was to be tried in smaller packs. Jobs of which no
    trial is wanted stay.
    """
    folders = sorted((work.folder / "jobs").glob("*/job.json"))
    wanted = {trial.key for trial in work.pending()} if folders else set()
    for own in (path.parent for path in folders):
        outcome = outcome_of(own)
        if outcome is None or not wanted & {
            trial.key
            for trials in ([r.trial for r in outcome.results], *outcome.back)
            for trial in trials
        }:
            continue
        results = [r for r in outcome.results if r.key in wanted and r.status != "failed"]
        wanted -= {result.key for result in results}
        for notice in outcome.notices:
            work.tell(notice)
        if results:
            yield results
            checkpoint.forget(work.folder / "checkpoints", [r.trial for r in outcome.results])
        shutil.rmtree(own, ignore_errors=True)
