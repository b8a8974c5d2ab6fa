"""A study's runs as rows of a table: those of its latest validation, and its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.errors import BadInput, Call, Keyword
from sweeper.files import read_json, try_json, write_atomically
from sweeper.records import from_json
from sweeper.stats.ladder import LADDER_AXES, LadderSize, SizeCurve, curves_along
from sweeper.study.folder import READ_ERRORS, StudyFolder
from sweeper.study.searched import config_tree
from sweeper.table import csv_text
from sweeper.trial import Result

RULE = ("seeds", "step", "span", "extend", "max_shift", "max_loss_gap", "correct")
"""Settings of `transfer` that a verdict and its advice rest on."""


@dataclass(frozen=True)
class ValidatedRuns:
    """The curves of a validation of eta, and the sizes of its ladders by axis, the base's marked.

    `planned_log2` is log2 of the eta that was transferred, `rule` what the verdict rests on.
    """

    planned_log2: float
    curves: tuple[SizeCurve, ...]
    ladders: Mapping[str, tuple[LadderSize, ...]]
    bases: frozenset[LadderSize]
    rule: Mapping[str, float]

    @classmethod
    def latest(cls, folder: Path) -> ValidatedRuns | None:
        """The runs of the latest validation; None without one, BadInput where it cannot be read."""
        path = next(iter(StudyFolder(folder).validations()), None)
        if path is None:
            return None
        try:
            return cls.of(read_json(path))
        except (OSError, *READ_ERRORS) as error:
            raise BadInput(f"{path} cannot be read ({error}): validate again") from error

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ValidatedRuns:
        """The runs of a validation's record; its verdicts are passed over."""
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
            rule={f"transfer.{key}": value for key, value in record.get("rule", {}).items()},
        )

    def along(self, axis: str) -> ValidatedRuns:
        """Its ladder along an axis alone, ascending: all else of a size is as in its verdict."""
        curves = curves_along(axis, self.curves, self.ladders.get(axis, ()))
        return replace(self, curves=tuple(curves))

    def rows(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A row a run, each with the study's `settings`, but for those of its own rule."""
        rows, settings = [], {**settings, **self.rule}
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
    rows = validated.rows(settings_of(folder))
    write_atomically(path, csv_text(rows))
    return len(rows)


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


def by_design(results: Sequence[Result]) -> list[Result]:
    """Results in an order that does not depend on which ended first.

    A bootstrap draws runs by their places, and after a kill they end in another order.
    """

    def place(result: Result) -> tuple[Any, ...]:
        trial, train = result.trial, result.trial.spec.train
        size = (trial.spec.width, trial.spec.depth, train.batch_size, train.steps)
        return *size, sorted(trial.log2_hps.items()), trial.seed, trial.key

    return sorted(results, key=place)


def settings_of(folder: Path) -> dict[str, Any]:
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
