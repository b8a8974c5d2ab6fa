"""Studies whose next runs are trained: each at its optimum, at the widths that tell."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sweeper.config.settings import Experiment, Settings, check_model_size, check_seeds
from sweeper.config.studies import study_tree
from sweeper.errors import BadInput, ConfigError, Keyword, Text
from sweeper.evidence.compare.deciding import FIRST, Deciding, Run
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.compare.studies import (
    TOO_FEW,
    check_comparable,
    check_distinct,
    question_of,
)
from sweeper.evidence.flags import ignored
from sweeper.launch.executor import Scheduled
from sweeper.stats.ladder import LadderSize
from sweeper.study.cost import fitting
from sweeper.study.flops import relative_flops
from sweeper.study.lock import StudyLock
from sweeper.study.setup import LADDER_PHASE
from sweeper.study.study import StudyRecord, find_study
from sweeper.study.watcher import Watcher
from sweeper.sweep.experiment import (
    check_queue,
    check_taken,
    open_experiment,
    progress_of,
    resolve_study,
    trial_seconds,
)
from sweeper.sweep.optimum import check_storage_password, planned_optimum
from sweeper.sweep.study_replay import planned_log2
from sweeper.sweep.sweep import Submitted, Sweep
from sweeper.trial import Log2Hps, Result, Trial
from sweeper.verbs.requests import budget_of

FRESH_SEED = 3 * 10**6
"""The first seed at a width at which one of the studies searched: its optimum was chosen there by
other seeds, whose losses are too low."""
K = Keyword


@dataclass(kw_only=True)
class Contender:
    """A study `planned` at each width (log2); at those `searched` its seeds are fresh ones."""

    name: str
    experiment: Experiment
    planned: Mapping[int, tuple[LadderSize, Log2Hps]]
    study: StudyRecord
    searched: frozenset[int]
    # What failed before is tried again, its cause may be gone; what fails now is taken as it is.
    retry: set[str] = field(default_factory=set)

    def open(self, stack: ExitStack) -> None:
        """Lock the study, and write to it from here on."""
        settings = self.experiment.settings
        stack.enter_context(StudyLock(settings.folder))
        self.study = stack.enter_context(StudyRecord.open(settings.folder, settings.storage))
        self.retry = {r.key for r in self.study.results() if r.status == "failed"}

    def first_seed(self, width: int) -> int:
        """The seed from which those of a width count."""
        return FRESH_SEED if width in self.searched else 0

    def trial(self, width: int, seed: int) -> Trial:
        """The run of a seed at a width."""
        size, hps = self.planned[width]
        return self.experiment.trial(size, hps, self.first_seed(width) + seed, LADDER_PHASE)

    def result(self, width: int, seed: int) -> Result | None:
        """The result of a run, where the study has it; none that was stopped early."""
        key = self.trial(width, seed).key
        result = None if key in self.retry else self.study.get(key)
        return None if result is not None and result.status == "pruned" else result

    def flops(self, width: int) -> float:
        """FLOPs of a run; where nobody knows them, what is in proportion."""
        return relative_flops(self.experiment.spec(self.planned[width][0]))

    def seconds(self) -> Callable[[int], float]:
        """Seconds of a run by its width, as those of this size took, or by its work from others."""
        timed = trial_seconds(self.experiment.settings, self.study.results())
        return lambda width: timed.of(self.trial(width, 0))

    def train(self, runs: Sequence[tuple[int, int]], watcher: Watcher, *, wait: bool) -> None:
        """Train runs by width and seed; Submitted without `wait` where they are in a queue."""
        trials, settings = [self.trial(*run) for run in runs], self.experiment.settings
        results = self.study.results()
        title = f"compare: {self.name}"
        with progress_of(settings, watcher, title, len(trials), results=results) as bar:
            Sweep(self.experiment, self.study, bar, wait=wait).runs(trials)
        self.retry -= {trial.key for trial in trials}


def deciding_of(asked: CompareRequest, contenders: Sequence[Contender]) -> Deciding:
    """What says by the studies' results which runs come next, and when it is decided."""
    by_name, widths = {each.name: each for each in contenders}, [*contenders[0].planned]

    def result(name: str, size: int, seed: int) -> Result | None:
        return by_name[name].result(widths[size], seed)

    def loss(*run: str | int) -> float | None:
        there = result(*run)  # type: ignore[arg-type]
        return None if there is None else there.objective

    def affordable(following: Sequence[Run]) -> int:
        """How many of these runs the hours have room for, by the time that their sizes take."""
        assert hours is not None
        taken = [each.seconds for run in deciding.asked if (each := result(*run)) is not None]
        timed = {name: each.seconds() for name, each in by_name.items()}
        seconds = (timed[name](widths[size]) for name, size, _ in following)
        return fitting(seconds, hours * 3600 * slots - math.fsum(taken))

    workers = [getattr(each.experiment.settings.launcher, "workers", 1) for each in contenders]
    slots = max(count if isinstance(count, int) else 1 for count in workers)
    first = contenders[0]
    sizes = [first.planned[width][0] for width in widths]
    # A width that is trained itself is no target.
    beyond = asked.to_width is not None and widths != [asked.to_width]
    to = {"width": float(asked.to_width)} if beyond and asked.to_width else {}
    runs, hours = budget_of(asked.budget)
    # It begins with those that all ladders have, without the one beyond, the dearest.
    begun = len(_common([each.experiment.settings for each in contenders]) & {*widths})
    deciding = Deciding(
        [*by_name],
        [{"width": float(size.width), "steps": float(size.steps)} for size in sizes],
        [first.flops(width) for width in widths],
        question_of(asked, to),
        loss,
        begun=max(1, begun),
        budget=runs,
        affordable=None if hours is None else affordable,
        slots=slots,
    )
    return deciding


def train(
    deciding: Deciding, contenders: Sequence[Contender], watcher: Watcher, *, wait: bool
) -> int:
    """Train round by round until it has ended; without `wait`, how many are in a queue."""
    looks, widths = 0, [*contenders[0].planned]
    while missing := deciding.missing():
        if deciding.looks > looks:
            looks = deciding.looks
            watcher.tell(watcher.sentence(deciding))
        runs: dict[str, list[tuple[int, int]]] = {each.name: [] for each in contenders}
        for name, size, seed in missing:
            runs[name].append((widths[size], seed))
        lacking = [each for each in contenders if runs[each.name]]
        waiting = 0
        # Jobs that outlive their driver are submitted for all studies before one is waited for.
        for each in lacking:
            if isinstance(each.experiment.settings.launcher, Scheduled):
                try:
                    each.train(runs[each.name], watcher, wait=False)
                except Submitted as submitted:
                    waiting += submitted.submitted
        if waiting and not wait:
            return waiting
        for each in lacking if wait else ():
            each.train(runs[each.name], watcher, wait=True)
    return 0


def contenders_of(
    asked: CompareRequest, names: Sequence[str], overrides: Sequence[str], root: Path
) -> tuple[list[Contender], list[str], list[int]]:
    """The studies, opened, and what differs between them; BadInput for what cannot be compared."""
    names = [find_study(name, root) for name in names]
    if len(names) < 2:
        raise BadInput(*TOO_FEW)
    check_distinct(names)
    if (first := asked.baseline) is not None:
        if first not in names:
            raise ConfigError(K("baseline"), first, f"one of {', '.join(names)}")
        names = [first, *(name for name in names if name != first)]
    overrides = [*overrides, f"root={root}"]
    every = list[Settings]()
    for name in names:
        settings = resolve_study(*study_tree(name, overrides, trust=asked.trust))
        if asked.detach:
            check_queue(settings)
        if not asked.dry_run:
            check_storage_password(settings)
        check_seeds(settings, "seeds", FIRST)
        every.append(settings)
    widths = _widths(every, asked)
    base = {settings.base.width for settings in every}
    contenders, unfinished = list[Contender](), list[int]()
    for name, settings in zip(names, every, strict=True):
        # A dry run prepares its data aside, and leaves nothing in a study.
        with tempfile.TemporaryDirectory() if asked.dry_run else nullcontext() as temporary:
            experiment = open_experiment(settings, Path(temporary) if temporary else None)
        settings, study = experiment.settings, StudyRecord.read(experiment.settings.folder)
        optimum = planned_optimum(experiment, study)
        unfinished += [optimum.unfinished] * bool(optimum.unfinished)
        best = optimum.conclusion.best_log2
        sizes = [settings.with_steps(replace(settings.ladder_base, width=w)) for w in widths]
        contenders.append(
            Contender(
                name=name,
                experiment=experiment,
                planned={s.width: (s, planned_log2(experiment, s, best)) for s in sizes},
                study=study,
                searched=frozenset(base),
            )
        )
    specs = {each.name: each.experiment.spec(each.planned[widths[0]][0]) for each in contenders}
    return contenders, check_comparable(specs, ignored(asked.ignore)), unfinished


def _widths(studies: Sequence[Settings], asked: CompareRequest) -> list[int]:
    common, target = _common(studies), asked.to_width
    if not common:
        ladders = ", ".join(f"{each.name}: {sorted(_ladder(each))}" for each in studies)
        raise BadInput(f"no width is on all ladders ({ladders}): give all the same transfer.widths")
    if target is None or target <= max(common):
        width = max(common) if target is None else target
        if (unfit := _unfit(studies, width)) is not None:
            raise ConfigError(K("to_width"), width, unfit)
        return [width]
    # One beyond the ladders, where all can have it: nearer to the target runs tell more.
    wider = min(2 * max(common), target)
    return [*sorted(common), *[wider] * (_unfit(studies, wider) is None)]


def _ladder(study: Settings) -> set[int]:
    return {study.base.width, *(size.width for size in study.ladders().get("width", ()))}


def _common(studies: Sequence[Settings]) -> set[int]:
    return set.intersection(*map(_ladder, studies))


def _unfit(studies: Sequence[Settings], width: int) -> Text | None:
    for settings in studies:
        try:
            size = replace(settings.ladder_base, width=width)
            check_model_size(settings, size)
            check_taken(settings, asdict(size))
        except ConfigError as error:
            return (f"one that {settings.name} can have: ", *error.args)
    return None
