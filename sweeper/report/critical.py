"""The critical batch in sentences, and what is shown where it is the whole answer."""

from __future__ import annotations

import math
from typing import Any

from sweeper.errors import SHELL, spelled
from sweeper.files import private_folder, write_json
from sweeper.records import to_json
from sweeper.report.present import Shown
from sweeper.stats.critical_batch import FEWEST_BATCHES, FEWEST_RUNS, CriticalBatch
from sweeper.stats.estimate import Estimate
from sweeper.table import counted
from sweeper.verbs.judge import CriticalAnswer


def critical_lines(told: CriticalBatch) -> list[str]:
    """What steps and examples for one loss say of the batch, the answer last."""
    ran = f"batches {told.batches[0]} to {told.batches[-1]}" if told.batches else "no batch"
    where = f"at a loss of {told.loss:.4g}, by {counted(told.runs, 'run')} of {ran}"
    match told.code:
        case "too_few":
            return [
                f"No critical batch: that takes {FEWEST_BATCHES} batches and {FEWEST_RUNS} runs "
                f"that reach one loss, and there are {told.runs} of {len(told.batches)}."
            ]
        case "open":
            return [f"The critical batch cannot be said {where}: steps scatter too much."]
        case "at_least":
            return [
                f"The critical batch is at least {told.batch.low:.3g} {where}: larger ones still "
                "save steps nearly in proportion."
            ]
        case "at_most":
            return [
                f"The critical batch is at most {told.batch.high:.3g} {where}: larger ones save "
                "hardly any steps."
            ]
    return [
        f"The loss takes {_range(told.least_steps)} steps at least, and "
        f"{_range(told.least_examples)} examples at least; a run's steps scatter by "
        f"{told.error:.1%}.".replace("%", " %"),
        f"The critical batch is {_range(told.batch)} {where}: there it takes twice the least of "
        "both.",
    ]


def _range(estimate: Estimate) -> str:
    high = f"{estimate.high:.3g}" if math.isfinite(estimate.high) else "any"
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {high})"


def critical_record(answer: CriticalAnswer) -> dict[str, Any]:
    """Plain JSON, with what it says in sentences."""
    return {
        "answer": answer.critical.code,
        "critical_batch": to_json(answer.critical),
        **answer.facts,
        "sentences": critical_lines(answer.critical),
        "notes": [spelled(note, SHELL) for note in answer.notes],
    }


def critical_shown(answer: CriticalAnswer) -> Shown:
    """The critical batch where the runs tell nothing else."""
    record = critical_record(answer)
    private_folder(answer.folder)
    write_json(answer.folder / "critical.json", record)
    return Shown(
        answer=" ".join(record["sentences"]),
        notes=answer.notes,
        places={"verdict": answer.folder / "critical.json"},
        document=record,
        folder=answer.folder,
    )
