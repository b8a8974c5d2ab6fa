"""The measurement behind `sweeper transfer --validate`: ladders, verdicts, the trend over width."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeper.commands.experiment import check_taken, progress
from sweeper.commands.laws import exponent_lines, finished, fit_law, law_record, replanned
from sweeper.commands.output import Output, failures
from sweeper.errors import BadInput, key_prefix
from sweeper.files import try_json, write_json
from sweeper.lock import StudyLock
from sweeper.planned import described
from sweeper.replay import replay_ladder
from sweeper.report import console as show
from sweeper.report.documents import PLANNED, planned_value
from sweeper.report.drawing import save
from sweeper.report.plots import learning_rate_figure
from sweeper.report.provenance import provenance
from sweeper.search.strategy import Conclusion
from sweeper.settings import Experiment, Settings, check_seeds
from sweeper.study import Study
from sweeper.sweep import Sweep
from sweeper.transfer.base import missed_optimum
from sweeper.transfer.curve import fit_curve
from sweeper.transfer.exponents import FittedExponents
from sweeper.transfer.ladder import JOINT_AXIS, LADDER_AXES, Size, SizeCurve, size_record
from sweeper.transfer.trend import Trend, fit_trend, limit_by_trend
from sweeper.transfer.verdict import Verdict, judge_ladder
from sweeper.trial import Choice, Log2Hps, defaults, encode, named


def check_ladders(experiment: Experiment) -> None:
    """BadInput when there is nothing to judge, or the data cannot fill the largest batch."""
    settings = experiment.settings
    ladders = settings.transfer.ladders(settings.ladder_base)
    if not ladders:
        raise BadInput(
            "--validate has no ladder to train: give transfer.widths, depths, batches, steps "
            "or sizes at least one value that is not the base's"
        )
    check_seeds(settings, "transfer.seeds", settings.transfer.seeds)
    for size in (size for ladder in ladders.values() for size in ladder):
        check_taken(settings, asdict(size))
        _check_words(experiment, size)
    for axis, key in (("batch_size", "batches"), (JOINT_AXIS, "sizes")):
        for size in ladders.get(axis, ()):
            try:
                experiment.corpus.check(size.batch_size, settings.raw["train"]["seq_len"])
            except BadInput as error:
                raise BadInput(f"transfer.{key}: {error}") from error


def _check_words(experiment: Experiment, size: Size) -> None:
    """ConfigError for a command with an expression that has no value at a size of a ladder."""
    settings = experiment.settings
    with key_prefix("runner"):
        trial = experiment.trial(size, defaults(settings.space), 0, "check")
        settings.runner.words(trial, settings.folder)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What the ladders say: a verdict an axis, eta's trend over width, and a law fitted to them.

    `experiment` has that law where it could be fitted. `planned` are the hyperparameters to plan
    with (log2): the search's, but for an eta that the base's own curve shows to be wrong there.
    """

    experiment: Experiment
    planned: Log2Hps
    verdicts: list[Verdict]
    trend: Trend | None
    exponents: FittedExponents | None = None


def validate(
    experiment: Experiment, conclusion: Conclusion, target: int, folder: Path, output: Output
) -> Validation:
    """Train the ladders and judge them; also eta's trend over width, at the width `target`."""
    settings, rule, start = experiment.settings, experiment.settings.transfer, time.time()
    ladders = rule.ladders(settings.ladder_base)
    sizes = sorted({size for ladder in ladders.values() for size in ladder})
    with StudyLock(settings.folder), Study.open(settings.folder, settings.storage) as study:
        planned = len(sizes) * rule.points_per_line() * rule.seeds
        with progress(settings, output, "validate", planned, known=study.results()) as monitor:
            sweep = Sweep(experiment, study, monitor)
            curves = {c.size: c for c in sweep.ladder(conclusion.best_log2, sizes)}
        output.notes([*study.notices, *failures(study.results(), settings.identity)])
        output.tell_speed(study.results(), since=start)
    best = conclusion.best_log2
    experiment, exponents = fit_law(experiment, best, curves.values())
    if exponents is not None:
        curves = replanned(experiment, best, curves)
    hps, note = _planned(settings, curves[settings.ladder_base], best)
    centre = hps[rule.along]
    by_axis = {axis: [curves[size] for size in ladder] for axis, ladder in ladders.items()}
    verdicts = [
        judge_ladder(
            axis,
            of_axis,
            centre,
            settings.ladder_base,
            rule,
            described(experiment, ladders[axis], best),
        )
        for axis, of_axis in by_axis.items()
    ]
    trend = fit_trend(by_axis.get("width", ()), centre, target)
    beside = trend if rule.along == "eta" and not rule.correct else None
    verdicts = [limit_by_trend(v, beside, rule) if v.axis == "width" else v for v in verdicts]
    verdicts = [v.with_note(note) for v in verdicts]
    log2_hps = named(settings.space, best)
    record = _record(rule.along, log2_hps, verdicts, list(curves.values()), trend)
    record |= {PLANNED: centre} if note else {}
    record |= {"law": law} if (law := law_record(settings)) else {}
    record |= {"exponents": exponents.to_json()} if exponents else {}
    record |= {"command": provenance()["command"]}
    path = folder / validation_name(rule.along)
    write_json(path, _with_earlier(record, try_json(path)))
    for verdict in verdicts:
        picture = folder / f"{_curves(path)}-{verdict.axis}"
        save(learning_rate_figure(encode(record), verdict.axis), picture)
        show.verdict(output.people, verdict, rule.along)
        output.say(f"Curves: {picture}.png")
    for line in exponent_lines(exponents) if exponents else ():
        output.say(line)
    return Validation(
        experiment=experiment,
        planned=hps,
        verdicts=verdicts,
        trend=trend if rule.along == "eta" else None,
        exponents=exponents,
    )


def validation_name(along: str) -> str:
    """The file of a verdict on curves along a hyperparameter."""
    return f"validation{'' if along == 'eta' else f'-{along}'}.json"


def _curves(record: Path) -> str:
    """What a verdict's pictures are called, but for the axis."""
    return record.stem.replace("validation", "curves", 1)


def _planned(settings: Settings, base: SizeCurve, best: Log2Hps) -> tuple[Log2Hps, str]:
    """The hyperparameters to plan with, and a note where they are not those of the search.

    The base's curve is fitted by itself, so that all ladders plan alike. An eta that the user gave
    stays: the verdict says what it loses.
    """
    rule = settings.transfer
    if rule.along != "eta" or rule.eta is not None or base.failed:
        return best, ""
    missed = missed_optimum(fit_curve(base, best["eta"]), best["eta"], rule)
    if missed is None:
        return best, ""
    return Log2Hps({**best, "eta": missed.optimum_log2}), (
        f"{missed.sentence}, with which the plan is made: the search had fewer runs there, or "
        "tuning the other hyperparameters moved the optimum"
    )


def planned_before(settings: Settings, best: Log2Hps) -> Log2Hps:
    """The hyperparameters that the study's latest verdict on the optimum `best` planned with."""
    paths = (settings.folder / "transfer").glob("*/validation.json")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        record = try_json(path)
        if settings.transfer.eta is None and record.get("log2_hps") == named(settings.space, best):
            eta = planned_value(record)
            return Log2Hps({**best, "eta": eta}) if math.isfinite(eta) else best
    return best


def remove_stale_verdicts(
    folder: Path, log2_hps: Mapping[str, Choice], law: Mapping[str, Any] | None
) -> list[str]:
    """Remove verdicts in a target's `folder` on other hyperparameters or another law than a plan's.

    A page must not show a plan beside a verdict on another. The verdicts' trials stay in the study,
    so validating the other plan again trains nothing. Returns a sentence for each one removed.
    """
    sentences = []
    for path in sorted(folder.glob("validation*.json")):
        record = try_json(path)
        if not record or (record.get("log2_hps") == log2_hps and record.get("law") == law):
            continue
        for axis in (*LADDER_AXES, JOINT_AXIS):
            for suffix in ("png", "svg"):
                (folder / f"{_curves(path)}-{axis}.{suffix}").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        other = "another law" if record.get("log2_hps") == log2_hps else "other hyperparameters"
        sentences.append(f"{path.name} judged {other} and was removed; --validate judges these")
    return sentences


def measured_trend(
    experiment: Experiment, study: Study, best: Log2Hps, planned: Log2Hps, target: int
) -> Trend | None:
    """The trend over width when the study has measured its whole ladder already, else None."""
    settings = experiment.settings
    if settings.transfer.along != "eta":
        return None
    sizes: Sequence[Size] = settings.transfer.ladders(settings.ladder_base).get("width", ())
    curves, _, missing = replay_ladder(experiment, best, sizes, finished(study))
    return None if missing else fit_trend(curves, planned["eta"], target)


def _record(
    along: str,
    log2_hps: Mapping[str, Choice],
    verdicts: Sequence[Verdict],
    curves: Sequence[SizeCurve],
    trend: Trend | None,
) -> dict[str, Any]:
    """The content of `validation.json`, or of curves along another one `validation-NAME.json`."""
    return {
        "along": along,
        f"transferred_log2_{along}": log2_hps[along],
        "log2_hps": log2_hps,
        "axes": [verdict.to_json() for verdict in verdicts],
        "trend": trend and trend.to_json(),
        "curves": [
            {
                **size_record(asdict(curve.size)),
                "points": [
                    {f"log2_{along}": value, "losses": list(losses)}
                    for value, losses in sorted(curve.losses.items())
                ],
            }
            for curve in curves
        ],
    }


def _with_earlier(record: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The record, with what an earlier one says of the same hyperparameters on other ladders."""
    if any(earlier.get(key) != record.get(key) for key in ("along", "log2_hps", "law", PLANNED)):
        return record
    try:
        axes = {axis["axis"]: axis for axis in (*earlier["axes"], *record["axes"])}
        curves = {_size_of(curve): curve for curve in (*earlier["curves"], *record["curves"])}
    except (TypeError, KeyError):  # of another shape than is written here
        return record
    trend = record["trend"] or earlier.get("trend")
    return {**record, "axes": list(axes.values()), "curves": list(curves.values()), "trend": trend}


def _size_of(curve: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(curve.get(key, 0) for key in LADDER_AXES)
