"""Runs of a study: of its latest validation, which give its verdict again, else its trials."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from sweeper.errors import BadInput, Keyword
from sweeper.evidence.runs.run import Runs, recorded
from sweeper.evidence.runs.table import frame_runs
from sweeper.evidence.runs.tuned import TriedRun, tuned
from sweeper.study.runs_table import ValidatedRuns, by_design, settings_of, trials_table
from sweeper.study.setup import trials_of
from sweeper.study.study import StudyRecord
from sweeper.trial import Result

EVERY_LADDER = "*"
"""In place of an axis: the runs of all ladders, with their tokens."""


def study_runs(folder: Path, axis: str | None = None) -> Runs:
    """The runs of a study of ours: those of its latest validation, else all trials.

    Columns are sizes, log2 eta, seed, loss, and what the verdict took as given: the base, the
    transferred value, the parameterization, `transfer.*`. Of several ladders that over `axis`, or
    the first.
    """
    validated = ValidatedRuns.latest(folder)
    # Its curves are of these results: what is missing among them is told, as by every verb.
    study = StudyRecord.read(folder, curves=False)
    if validated is not None and validated.curves:
        note: list[str | Keyword] = ["runs of the study's latest validation"]
        ladders = [*validated.ladders]
        if len(ladders) > 1 and (axis or ladders[0]) in ladders:
            axis = axis or ladders[0]
            validated = validated.along(axis)
            note.append(f", of its ladder over {axis} (")
            for other in ladders:
                note += [Keyword("axis", other), ", "] if other != axis else []
            note[-1:] = [": another)"]
        rows = validated.rows(settings_of(folder))
        if axis == EVERY_LADDER:
            length = _example_length(folder)
            rows = [{**row, "tokens": length * row["batch_size"] * row["steps"]} for row in rows]
    else:
        rows = trials_table(trials_of(study).current)
        note = ["trials of the study, which was not validated"]
        if not rows:
            raise BadInput(f"the study in {folder} has no trials yet")
    runs = frame_runs(rows, str(folder))
    return replace(runs, notes=(tuple(note),), ignore=recorded(runs.frame))


def _example_length(folder: Path) -> int:
    """Tokens of an example of our own trainer; 1 where an example is none, or nobody knows."""
    results = StudyRecord.read(folder).results()
    spec = results[0].trial.spec if results else None
    if spec is None or spec.runner.get("name") != "engine" or "input_shape" in spec.data:
        return 1
    return spec.train.seq_len


def final_runs(
    study: StudyRecord, where: str = ""
) -> tuple[list[Result], dict[str, list[Result]], int]:
    """The runs that a law of final losses takes: finished, each size and horizon at its best.

    Which that is of the hyperparameters of every (width, depth, steps) says `cells.tuned`. Beside
    them those that are left out, by the reason, and how many are of another setup. `where` is a
    condition on what a row of `trials_table` has.
    """
    of_setup = trials_of(study)
    left_out: dict[str, list[Result]] = {}
    batches = Counter(r.trial.spec.train.batch_size for r in of_setup.searched)
    # The batch of the search: runs of another one follow another law.
    usual = batches.most_common(1)[0][0] if batches else None
    taken, tried = list[Result](), list[TriedRun]()
    current = of_setup.current
    if where:
        rows = frame_runs(trials_table(current)).only(where).frame.index
        current = [current[place] for place in rows]
    for result in by_design(current):
        spec, loss = result.trial.spec, result.objective
        if result.status != "complete" or result.steps < spec.train.steps:
            left_out.setdefault("not finished, or diverged", []).append(result)
            if result.status != "diverged":
                continue
            loss = math.inf
        elif usual is not None and spec.train.batch_size != usual:
            left_out.setdefault(f"with another batch than {usual}", []).append(result)
            continue
        hps = dict(result.trial.log2_hps)
        rate, size = hps.pop("eta", 0.0), (spec.width, spec.depth, spec.train.steps)
        rest = json.dumps([hps, dict(result.trial.choices)], sort_keys=True)
        taken.append(result)
        tried.append(TriedRun(cell=size, rate=rate, rest=rest, loss=loss))
    best_runs = tuned(tried)
    if best_runs.off:
        left_out["off the optimum of their size"] = [taken[place] for place in best_runs.off]
    for places in best_runs.at_end.values():
        spec = taken[places[0]].trial.spec
        width, depth, steps = spec.width, spec.depth, spec.train.steps
        why = (
            f"as the best eta of width {width}, depth {depth}, {steps:,} steps lies at the end "
            "of those trained"
        )
        left_out[why] = [taken[place] for place in places]
    return [taken[place] for place in best_runs.kept], left_out, of_setup.others
