"""`sweeper transfer`."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.commands.bench import check_target, open_bench, progress
from sweeper.commands.output import DONE, NOT_PROVEN, Output, failures, find_study
from sweeper.config import parse, plain, read_tree
from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.files import private_folder, write_json
from sweeper.lock import StudyLock
from sweeper.report import console as show
from sweeper.report.log import heard
from sweeper.report.page import write_report
from sweeper.report.plots import learning_rate_figure, save
from sweeper.report.provenance import provenance
from sweeper.search.strategy import Conclusion
from sweeper.settings import Bench, Settings, read_root, resolve
from sweeper.study import Study
from sweeper.sweep import Sweep, replay_search
from sweeper.transfer.ladder import Size, SizeCurve
from sweeper.transfer.plan import TransferPlan, make_plan
from sweeper.transfer.verdict import Verdict, judge
from sweeper.trial import encode


def split_root(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The root folder that the overrides give (default runs), and the other overrides."""
    root, others = Path("runs"), []
    for word, override in zip(words, parse(words), strict=True):
        if override.key_or_group == "root":
            root = read_root(plain("root", override.value()))
        else:
            others.append(word)
    return root, others


def load_study(name: str | None, words: Sequence[str], config_dir: Path | None) -> Settings:
    """A study's settings with overrides on top; BadInput for what a study cannot change."""
    root, others = split_root(words)
    found = find_study(name, root)
    for override in parse(others):
        key = str(override.key_or_group)
        if key.split(".")[0] in ("parameterization", "experiment") or key in _NAMES:
            raise BadInput(
                f"{key} cannot be changed for the study {found!r}: search anew with it, or choose "
                "another study with --study"
            )
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
    bench = open_bench(settings)
    found = optimum(bench, output)
    if settings.transfer.eta is not None:
        found = replace(found, best={**found.best, "eta": settings.transfer.eta})
    plan = _plan(bench, size, found)
    folder = settings.folder / "transfer" / f"w{size.width}-d{size.depth}"
    private_folder(folder)
    write_json(folder / "plan.json", plan.to_json())
    show.plan(output.people, plan)
    verdicts: list[Verdict] = []
    if target.validate:
        with_depth = size.depth != settings.base.depth or bool(settings.transfer.depths)
        verdicts = _validate(bench, found, folder, output, with_depth=with_depth)
    if sentence := heard(lambda: settings.logger.plan(settings.folder, folder)):
        output.notes([sentence])
    write_report(settings.folder)
    output.say(f"Plan: {folder / 'plan.json'}")
    output.say(f"Report: {settings.folder / 'report.html'}")
    if not target.validate:
        options = [f"--study={settings.name}", f"--to-width={size.width}"]
        options += [f"--to-depth={size.depth}"] * (size.depth != settings.base.depth)
        output.say(f"Next: {shlex.join(['sweeper', 'transfer', *options, '--validate', *words])}")
    answers = [verdict.to_json() for verdict in verdicts] if verdicts else None
    output.document({"study": settings.name, "plan": plan.to_json(), "verdicts": answers})
    proven = all(verdict.answer == "holds" for verdict in verdicts)
    return NOT_PROVEN if target.strict and not proven else DONE


def check_storage(settings: Settings) -> None:
    """BadInput when the study cannot be written because its storage's password was not kept."""
    if settings.storage is not None and "***" in settings.storage:
        raise BadInput(
            "the storage's password is not kept: give study.storage=... again "
            f"(it was {settings.storage})"
        )


def optimum(bench: Bench, output: Output) -> Conclusion:
    """The study's conclusion; BadInput when it has no trial of this configuration."""
    settings = bench.settings
    study = Study.read(settings.folder)
    history, missing = replay_search(bench, study.get)
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
        raise SweeperError(f"every trial of {settings.name!r} diverged: there is no optimum")
    return found


def _plan(bench: Bench, size: Size, found: Conclusion) -> TransferPlan:
    settings, recipe = bench.settings, bench.recipe(size)
    source = {
        "study": settings.name,
        "search": settings.raw["search"]["_target_"],
        "objective": found.objective,
        "runs": found.runs,
        "seeds": found.seeds,
        "eta_from": "the study" if settings.transfer.eta is None else "transfer.eta",
        "data": bench.corpus.identity(),
        **provenance(),
    }
    hps = {name: 2.0**value for name, value in found.best.items()}
    return make_plan(recipe, settings.base, size, hps, source)


def _validate(
    bench: Bench, found: Conclusion, folder: Path, output: Output, *, with_depth: bool
) -> list[Verdict]:
    """Train the ladders and judge them."""
    settings, rule, start = bench.settings, bench.settings.transfer, time.time()
    ladders = rule.ladders(settings.base, depth=with_depth)
    sizes = sorted({size for ladder in ladders.values() for size in ladder})
    with StudyLock(settings.folder), Study.open(settings.folder, settings.storage) as study:
        planned = len(sizes) * rule.points_per_line() * rule.seeds
        with progress(settings, output, "validate", planned) as monitor:
            sweep = Sweep(bench, study, settings.launcher, monitor, settings.logger)
            curves = {c.size: c for c in sweep.ladder(found.best, sizes)}
        output.notes([*study.notices, *failures(study.results())])
        output.tell_speed(study.results(), since=start)
    eta = found.best["eta"]
    verdicts = [
        judge(axis, [curves[size] for size in ladder], eta, settings.base, rule)
        for axis, ladder in ladders.items()
    ]
    record = _validation_record(eta, verdicts, list(curves.values()))
    write_json(folder / "validation.json", record)
    for verdict in verdicts:
        save(learning_rate_figure(encode(record), verdict.axis), folder / f"curves-{verdict.axis}")
        show.verdict(output.people, verdict)
        picture = folder / f"curves-{verdict.axis}.png"
        output.say(f"Curves: {picture}")
    return verdicts


def _validation_record(
    eta: float, verdicts: Sequence[Verdict], curves: Sequence[SizeCurve]
) -> dict[str, Any]:
    """The content of `validation.json`."""
    return {
        "transferred_log2_eta": eta,
        "axes": [verdict.to_json() for verdict in verdicts],
        "curves": [
            {
                **asdict(curve.size),
                "points": [
                    {"log2_eta": value, "losses": list(losses)}
                    for value, losses in sorted(curve.losses.items())
                ],
            }
            for curve in curves
        ],
    }
