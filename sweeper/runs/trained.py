"""What a study of ours trained, as runs: those of its latest validation, else its trials.

From the runs of a validation the same verdict follows.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.errors import BadInput, Call, Keyword
from sweeper.files import read_json, try_json, write_atomically
from sweeper.records import from_json
from sweeper.runs.cells import TriedRun, tuned
from sweeper.runs.run import Runs, recorded
from sweeper.runs.table import frame_runs
from sweeper.stats.ladder import LADDER_AXES, LadderSize, SizeCurve, curves_along
from sweeper.study.folder import READ_ERRORS, StudyFolder
from sweeper.study.searched import config_tree
from sweeper.study.setup import trials_of
from sweeper.study.study import Study
from sweeper.table import csv_text
from sweeper.trial import Result

EVERY_LADDER = "*"
"""In place of an axis: the runs of all ladders, with their tokens."""
RULE = ("seeds", "step", "span", "extend", "max_shift", "max_loss_gap", "correct")
"""Settings of `transfer` that a verdict and its advice rest on."""


@dataclass(frozen=True)
class ValidatedRuns:
    """The curves of a validation of eta, and the sizes of its ladders by axis, the base's marked.

    `planned_log2` is log2 of the eta that was transferred.
    """

    planned_log2: float
    curves: tuple[SizeCurve, ...]
    ladders: Mapping[str, tuple[LadderSize, ...]]
    bases: frozenset[LadderSize]

    @classmethod
    def latest(cls, folder: Path) -> ValidatedRuns | None:
        """That of the study in `folder`; None without one, BadInput where it cannot be read."""
        path = next(iter(StudyFolder(folder).validations()), None)
        if path is None:
            return None
        try:
            return cls.of(read_json(path))
        except (OSError, *READ_ERRORS) as error:
            raise BadInput(f"{path} cannot be read ({error}): validate again") from error

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ValidatedRuns:
        """Of a validation's record, of which the verdicts themselves are passed over."""
        sizes = {
            ladder["axis"]: [
                (from_json(LadderSize, size["size"]), bool(size.get("is_base")))
                for size in ladder["sizes"]
            ]
            for ladder in record.get("axes", ())
        }
        return cls(
            planned_log2=float(record["planned_log2"]),
            curves=from_json(tuple[SizeCurve, ...], record.get("curves", [])),
            ladders={axis: tuple(size for size, _ in pairs) for axis, pairs in sizes.items()},
            bases=frozenset(size for pairs in sizes.values() for size, base in pairs if base),
        )

    def along(self, axis: str) -> ValidatedRuns:
        """Its ladder along an axis alone, ascending: all else of a size is as in its verdict."""
        curves = curves_along(axis, self.curves, self.ladders.get(axis, ()))
        return replace(self, curves=tuple(curves))

    def rows(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A row a run, each with the study's `settings`."""
        rows = []
        for curve in self.curves:
            # 0 is an axis that the model does not have, such as experts.
            sizes = {key: size for key in LADDER_AXES if (size := getattr(curve.size, key))}
            for value, losses in sorted(curve.losses.items()):
                # Seeds by their place: a point's losses are kept in the order of its seeds.
                for seed, loss in enumerate(losses):
                    rows.append(
                        {
                            **sizes,
                            "base": curve.size in self.bases,
                            "transferred_log2_eta": self.planned_log2,
                            "planned_log2": curve.planned_log2,
                            "log2_eta": value,
                            "eta": 2.0**value,
                            "seed": seed,
                            "loss": loss,
                            **settings,
                        }
                    )
        return rows


def write_runs(folder: Path, path: Path) -> int:
    """Write the runs of the latest validation of eta; how many, BadInput where there is none."""
    validated = ValidatedRuns.latest(folder)
    if validated is None or not validated.curves:
        makes = Call(
            "transfer", Keyword("study", folder.name), Keyword("to_width", "N"), Keyword("validate")
        )
        raise BadInput(
            f"{folder.name} has no validation whose runs could be written: ", makes, " makes one"
        )
    rows = validated.rows(_settings(folder))
    write_atomically(path, csv_text(rows))
    return len(rows)


def study_runs(folder: Path, axis: str | None = None) -> Runs:
    """The runs of a study of ours: those of its latest validation, else all trials.

    Columns are sizes, log2 eta, seed, loss, and what the verdict took as given: the base, the
    transferred value, the parameterization, `transfer.*`. Of several ladders that over `axis`, or
    the first.
    """
    validated = ValidatedRuns.latest(folder)
    # Its curves are of these results: what is missing among them is told, as by every verb.
    study = Study.read(folder, curves=False)
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
        rows = validated.rows(_settings(folder))
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
    results = Study.read(folder).results()
    spec = results[0].trial.spec if results else None
    if spec is None or spec.runner.get("name") != "engine" or "input_shape" in spec.data:
        return 1
    return spec.train.seq_len


def trials_table(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row a trial: its sizes, log2 eta, what else was searched (as it is used), seed, loss."""
    rows = []
    for result in results:
        trial, size = result.trial, LadderSize.of_spec(result.trial.spec)
        others = {key: value for key, value in trial.values.items() if key != "eta"}
        eta = {"log2_eta": trial.log2_hps["eta"]} if "eta" in trial.log2_hps else {}
        sizes = {key: value for key in LADDER_AXES if (value := getattr(size, key))}
        outcome = {"seed": trial.seed, "loss": result.objective, "status": result.status}
        rows.append({**sizes, **eta, **others, **outcome})
    return rows


def results_where(results: Sequence[Result], where: str) -> list[Result]:
    """The results whose rows of `trials_table` meet a condition; ConfigError where none does."""
    runs = frame_runs(trials_table(results)).only(where)
    return [results[place] for place in runs.frame.index]


def final_runs(study: Study, where: str = "") -> tuple[list[Result], dict[str, list[Result]], int]:
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
    current = results_where(of_setup.current, where) if where else of_setup.current
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
    found = tuned(tried)
    if found.off:
        left_out["off the optimum of their size"] = [taken[place] for place in found.off]
    for places in found.at_end.values():
        spec = taken[places[0]].trial.spec
        width, depth, steps = spec.width, spec.depth, spec.train.steps
        why = (
            f"as the best eta of width {width}, depth {depth}, {steps:,} steps lies at the end "
            "of those trained"
        )
        left_out[why] = [taken[place] for place in places]
    return [taken[place] for place in found.kept], left_out, of_setup.others


def by_design(results: Sequence[Result]) -> list[Result]:
    """By size, length, hyperparameters and seed: which of them ended first must change no number.

    A bootstrap draws runs by their places, and after a kill they end in another order.
    """

    def place(result: Result) -> tuple[Any, ...]:
        trial, train = result.trial, result.trial.spec.train
        size = (trial.spec.width, trial.spec.depth, train.batch_size, train.steps)
        return *size, sorted(trial.log2_hps.items()), trial.seed, trial.key

    return sorted(results, key=place)


def _settings(folder: Path) -> dict[str, Any]:
    """The study's name, parameterization and thresholds; what is not legible is left out."""
    settings: dict[str, Any] = {"study": folder.name}
    search = try_json(StudyFolder(folder).search)
    if kind := search.get("parameterization"):
        settings["parameterization"] = kind.get("name") if isinstance(kind, dict) else str(kind)
    rule = config_tree(folder).get("transfer")
    if not isinstance(rule, dict):
        return settings
    return settings | {
        f"transfer.{key}": float(rule[key])
        for key in RULE
        if isinstance(rule.get(key), int | float)
    }
