"""`sweeper transfer`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.catalog import OVERLAYS
from sweeper.commands.experiment import check_target, open_experiment
from sweeper.commands.output import DONE, NOT_PROVEN, Output, find_study
from sweeper.commands.validate import check_ladders, measured_trend, validate
from sweeper.config import override_value, parse_overrides, read_tree
from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.files import private_folder, write_json
from sweeper.replay import replay_search
from sweeper.report import console as show
from sweeper.report.log import notice_of
from sweeper.report.page import write_report
from sweeper.report.provenance import provenance
from sweeper.search.strategy import Conclusion
from sweeper.settings import Experiment, Settings, read_root, resolve
from sweeper.study import Study, check_config_format
from sweeper.transfer.ladder import AXES, SEVERAL, Size
from sweeper.transfer.plan import TransferPlan, make_plan
from sweeper.transfer.trend import FEWEST, Trend
from sweeper.transfer.verdict import Verdict
from sweeper.trial import Log2Hps, plain


def split_root(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The root folder that the overrides give (default runs), and the other overrides."""
    root, others = Path("runs"), []
    for word, override in zip(words, parse_overrides(words), strict=True):
        if override.key_or_group == "root":
            root = read_root(override_value("root", override.value()))
        else:
            others.append(word)
    return root, others


def load_study(name: str | None, words: Sequence[str], config_dir: Path | None) -> Settings:
    """A study's settings with overrides on top; BadInput for what a study cannot change."""
    root, others = split_root(words)
    found = find_study(name, root)
    for override in parse_overrides(others):
        key = str(override.key_or_group)
        if key.split(".")[0] in ("parameterization", *OVERLAYS) or key in _NAMES:
            raise BadInput(
                f"{key} cannot be changed for the study {found!r}: search anew with it, or choose "
                "another study with --study"
            )
    check_config_format(root / found)
    path = root / found / "config.yaml"
    tree = read_tree(path, others, config_dir) | {"root": str(root)}
    if isinstance(tree.get("study"), dict):
        tree["study"]["name"] = found
    try:
        return resolve(tree)
    except ConfigError as error:
        if others:
            raise
        raise BadInput(f"{path}: {error}") from error


_NAMES = ("study", "study.name")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What `sweeper transfer` is asked for."""

    width: int
    depth: int | None = None
    validate: bool = False
    strict: bool = False


def transfer(
    study_name: str | None,
    target: Target,
    words: Sequence[str],
    config_dir: Path | None,
    output: Output,
) -> int:
    """The plan for the target from the study's optimum and, if asked, the proof that it holds."""
    settings = load_study(study_name, words, config_dir)
    size = Size(width=target.width, depth=target.depth or settings.base.depth)
    check_target(settings, size)
    if target.validate:
        check_storage(settings)
    experiment = open_experiment(settings)
    if target.validate:
        check_ladders(experiment)
    study = Study.read(settings.folder)
    found = optimum(experiment, study, output)
    if settings.transfer.eta is not None:
        found = replace(found, best_log2=Log2Hps({**found.best_log2, "eta": settings.transfer.eta}))
    folder = settings.folder / "transfer" / f"w{size.width}-d{size.depth}"
    verdicts: list[Verdict] = []
    if target.validate:
        private_folder(folder)
        verdicts, moved = validate(experiment, found, size.width, folder, output)
    else:
        moved = measured_trend(experiment, study, found, size.width)
        _check_correction(settings, moved)
    private_folder(folder)
    plan = _plan(experiment, size, found, moved)
    write_json(folder / "plan.json", plan.to_json())
    show.plan(output.people, plan)
    show.trend(output.people, moved, applied=plan.source["correction"] is not None)
    if settings.transfer.correct and moved is None:
        output.say("No correction: the optima of fewer than two widths are known.")
    if sentence := notice_of(lambda: settings.logger.plan(settings.folder, folder)):
        output.notes([sentence])
    write_report(settings.folder)
    output.say(f"Plan: {folder / 'plan.json'}")
    output.say(f"Report: {settings.folder / 'report.html'}")
    gaps = _gaps(settings, size, [verdict.axis for verdict in verdicts]) if target.validate else []
    output.notes(gaps)
    _next(settings, target, verdicts, words, output)
    document = {
        "study": settings.name,
        "plan": plan.to_json(),
        "verdicts": [verdict.to_json() for verdict in verdicts] or None,
        "trend": moved and moved.to_json(),
    }
    output.document(document)
    proven = not gaps and all(verdict.answer == "holds" for verdict in verdicts)
    return NOT_PROVEN if target.strict and not proven else DONE


def _next(
    settings: Settings,
    target: Target,
    verdicts: Sequence[Verdict],
    words: Sequence[str],
    output: Output,
) -> None:
    """The command that goes on from here: validation, or the seeds that would settle it."""
    seeds = max((v.more.seeds for v in verdicts if v.more is not None), default=0)
    if target.validate and not seeds:
        return
    options = [f"--study={settings.name}", f"--to-width={target.width}"]
    depth = target.depth or settings.base.depth
    options += [f"--to-depth={depth}"] * (depth != settings.base.depth)
    kept = [word for word in words if not (seeds and word.startswith("transfer.seeds="))]
    kept += [f"transfer.seeds={seeds}"] * bool(seeds)
    output.say(f"Next: {shlex.join(['sweeper', 'transfer', *options, '--validate', *kept])}")


def _gaps(settings: Settings, target: Size, climbed: Sequence[str]) -> list[str]:
    """Where the target differs from the base and no ladder that was judged does."""
    ladders, found = settings.transfer.ladders(settings.ladder_base), []
    for axis in ("width", "depth"):
        own, asked = getattr(settings.base, axis), getattr(target, axis)
        rungs = [rung for name in (axis, SEVERAL) if name in climbed for rung in ladders[name]]
        if asked != own and all(getattr(rung, axis) == own for rung in rungs):
            found.append(
                f"the target's {axis}, {asked}, is not proven: no ladder climbs it from the base's "
                f"{own}; add transfer.{AXES[axis]}=[{own},{2 * own},{4 * own}]"
            )
    return found


def _check_correction(settings: Settings, moved: Trend | None) -> None:
    """BadInput when a correction is asked for and the widths were not measured."""
    if settings.transfer.correct and moved is None:
        raise BadInput(
            "transfer.correct=true needs the optima of at least two widths: add --validate, and "
            f"give {FEWEST} widths or more, as in transfer.widths=[32,64,128]"
        )


def check_storage(settings: Settings) -> None:
    """BadInput when the study cannot be written because its storage's password was not kept."""
    if settings.storage is not None and "***" in settings.storage:
        raise BadInput(
            "the storage's password is not kept: give study.storage=... again "
            f"(it was {settings.storage})"
        )


def optimum(experiment: Experiment, study: Study, output: Output) -> Conclusion:
    """The study's conclusion; BadInput when it has no trial of this configuration."""
    settings = experiment.settings
    history, missing = replay_search(experiment, study.get)
    if not history.results:
        raise BadInput(
            f"the study {settings.name!r} has no finished trial of this configuration: "
            f"run `sweeper search study={settings.name}` with the same overrides first"
        )
    output.notes(study.notices)
    if missing:
        output.say(
            f"Note: the search is not finished; this is its best of {len(history.results)} trials."
        )
    found = settings.search.conclude(settings.space, history)
    if not math.isfinite(found.objective):
        raise SweeperError(
            f"every trial of {settings.name!r} diverged or failed: there is no optimum. Search "
            "anew, with lower values of parameterization.space.eta where they diverged"
        )
    return found


def _plan(
    experiment: Experiment, size: Size, found: Conclusion, moved: Trend | None
) -> TransferPlan:
    """The plan at the transferred eta, or where `transfer.correct` asks at the trend's."""
    settings, prepared = experiment.settings, experiment.prepared(size)
    best_log2, origin = (
        found.best_log2,
        "the study" if settings.transfer.eta is None else "transfer.eta",
    )
    correction = None
    if settings.transfer.correct and moved is not None and moved.warranted:
        best_log2 = Log2Hps({**best_log2, "eta": moved.predicted_log2.value})
        origin = "the trend over width"
        correction = moved.to_json()
    source = {
        "study": settings.name,
        "search": settings.plugin_spec("search").name,
        "objective": found.objective,
        "runs": found.runs,
        "seeds": found.seeds,
        "eta_from": origin,
        "correction": correction,
        "data": experiment.corpus.identity(),
        **provenance(),
    }
    return make_plan(prepared, settings.base, size, plain(best_log2), source)
