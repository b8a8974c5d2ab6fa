"""Which variant wins at a target, by runs of any source; or studies ranked, and by more runs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.config.settings import Experiment, Settings, check_model_size, check_seeds
from sweeper.config.studies import study_tree
from sweeper.decide.ranking import ROUNDS, Ranking, TargetRanking
from sweeper.decide.speed import SpeedUp, speed_ups
from sweeper.decide.winner import TargetQuestion, Winner, decide
from sweeper.errors import BadInput, Call, ConfigError, Keyword, Text, as_text
from sweeper.files import private_folder, write_json
from sweeper.launch.executor import Scheduled
from sweeper.records import to_json
from sweeper.runs.read import read, study_folder
from sweeper.runs.variants import VariantRuns, joined, variant_runs
from sweeper.stats.ladder import LadderSize
from sweeper.study.cost import fitting, flops_of
from sweeper.study.lock import StudyLock
from sweeper.study.setup import LADDER_PHASE, Failure, failures_of, provenance
from sweeper.study.study import Study, find_study
from sweeper.sweep.compared import (
    ComparedStudies,
    compared,
    comparison_folder,
    differences,
    named_studies,
    not_comparable,
)
from sweeper.sweep.experiment import (
    check_taken,
    open_experiment,
    progress_of,
    resolve_study,
    trial_seconds,
)
from sweeper.sweep.ladders import check_hours
from sweeper.sweep.optimum import check_storage_password, planned_optimum
from sweeper.sweep.progress import Watcher
from sweeper.sweep.replay import planned_log2
from sweeper.sweep.sweep import Submitted, Sweep
from sweeper.trial import Log2Hps, Result, Trial
from sweeper.verbs.answer import Outcome, SubmittedAnswer, VerbAnswer
from sweeper.verbs.requests import CompareRequest, columns_text

FRESH_SEED = 3 * 10**6
"""The first seed at a width at which one of the studies searched: its optimum was chosen there by
other seeds, whose losses are too low."""
TOO_FEW = ("compare takes two studies or more: ", Call("compare", "STUDY", "STUDY"))
K = Keyword


@dataclass(frozen=True, kw_only=True)
class CompareAnswer(VerbAnswer):
    """Studies ranked by their curves; `record` is written to `folder`.

    `faster`: by how much less compute the best reaches what the others do.
    """

    found: ComparedStudies
    faster: Sequence[SpeedUp]
    folder: Path
    root: Path
    record: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RankAnswer(VerbAnswer):
    """Studies ranked by runs at `width`, their settings changed by `overrides`.

    A `TargetRanking` asks at `width`, by runs at other `widths`. `known` is how many of the first
    round's runs are there, `flops` what that round takes, and what the budget does at most.
    `unfinished` has the number of trials of each study whose search is not at its end.
    """

    request: CompareRequest
    root: Path
    names: Sequence[str]
    overrides: Sequence[str]
    ranking: Ranking | TargetRanking
    width: int
    widths: Sequence[int]
    parameterizations: Mapping[str, str]
    unfinished: Sequence[int]
    known: int = 0
    flops: tuple[float, float] = (math.nan, math.nan)
    failures: Sequence[Failure] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class QueuedRankAnswer(RankAnswer, SubmittedAnswer):
    """A round whose runs are in a queue."""


@dataclass(frozen=True, kw_only=True)
class WinnerAnswer(VerbAnswer):
    """Variants at a target, by `runs`; with `strict` nothing is written unless asked for.

    `studies` are the folders of variants that are studies of ours, whose next runs can be trained.
    """

    request: CompareRequest
    runs: VariantRuns
    winner: Winner
    folder: Path
    studies: Mapping[str, Path] = field(default_factory=dict)


OF_RUNS = (
    *("by", "baseline", "to_params", "to_tokens", "columns", "where", "ignore", "strict"),
    *("floor", "exponent"),
)
"""Keywords that ask which variant wins, of runs from anywhere."""
OF_TARGET = ("baseline", "strict", "floor", "exponent", "to_width")
"""Those that ask so of studies whose next runs are trained."""
STRICT = {
    "better": Outcome.DONE,
    "worse": Outcome.NOT_VALIDATED,
    "cannot say": Outcome.CANNOT_SAY,
}


def compare(request: CompareRequest, watcher: Watcher) -> VerbAnswer:
    """Which variant wins at the target; of studies alone their ranking, with `settle` by runs."""
    root = Path(DEFAULT_ROOT if request.root is None else request.root).expanduser()
    if asks_for_winner(request.names, vars(request), root):
        return _winner(request, root)
    bounds = ("at_width", "budget", "hours", "detach", "dry_run")
    needless = [name for name in bounds if getattr(request, name)]
    if not request.settle and needless:
        raise BadInput(K(needless[0], ...), " is of what ", K("settle"), " trains: give both")
    if request.at_width is not None and request.to_width is not None:
        raise BadInput(
            *(K("at_width", ...), " asks at a width that is trained, "),
            *(K("to_width", ...), " at one that none reaches: give one"),
        )
    words, root = named_studies(request.names, None if request.root is None else str(request.root))
    if not request.settle:
        return _by_curves(request, words, root)
    names = [word for word in words if "=" not in word]
    return _by_runs(request, names, [word for word in words if "=" in word], root, watcher)


def asks_for_winner(sources: Sequence[object], asked: Mapping[str, Any], root: Path) -> bool:
    """Whether it is asked of variants: by a keyword, or as a source is no study of ours."""

    def is_table(source: object) -> bool:
        text = str(source)
        if not isinstance(source, str | Path) or text == "-" or "://" in text:
            return True
        there = text.startswith("wandb:") or Path(text).exists()
        return there and study_folder(source, root) is None

    # Runs from anywhere are variants, whatever else is asked; of studies the keywords decide.
    if any(map(is_table, sources)):
        return True
    # Of studies whose next runs are trained some of these keywords mean the same.
    settles = asked.get("settle") and asked.get("to_width")
    names = [name for name in OF_RUNS if not (settles and name in OF_TARGET)]
    return any(asked.get(name) not in (None, "", (), False) for name in names)


def _winner(request: CompareRequest, root: Path) -> WinnerAnswer:
    """The variants of all sources, carried to the target; BadInput for what is none."""
    needless = ("settle", "at_width", "budget", "hours", "detach", "dry_run", "anyway")
    if given := [name for name in needless if getattr(request, name)]:
        raise BadInput(K(given[0], ...), " is of studies that are ranked, and not of variants")
    ignore = request.ignore.split(",") if isinstance(request.ignore, str) else request.ignore
    sources = [
        read(
            source,
            columns=columns_text(request.columns),
            where=request.where,
            ignore=tuple(filter(None, (name.strip() for name in ignore))),
            root=root,
        )
        for source in request.names
    ]
    runs = variant_runs(joined(sources), request.by, request.baseline)
    asked = {"params": request.to_params, "tokens": request.to_tokens, "width": request.to_width}
    question = TargetQuestion(
        counts={role: float(value) for role, value in asked.items() if value is not None},
        floor=request.floor,
        exponent=request.exponent,
        error=request.error,
    )
    winner = decide(runs, question)
    names = [Path(source.name).stem or "runs" for source in sources]
    folders = [study_folder(source, root) for source in request.names]
    studies = {f.name: f for f in folders if f is not None and f.name in runs.names}
    return WinnerAnswer(
        studies=studies if {*studies} == {*runs.names} else {},
        outcome=STRICT[winner.answer] if request.strict else Outcome.DONE,
        request=request,
        runs=runs,
        winner=winner,
        folder=request.out or comparison_folder(names, root),
    )


def _by_curves(request: CompareRequest, names: Sequence[str], root: Path) -> CompareAnswer:
    """BadInput for too few studies, for such without a ladder, or not comparable."""
    if len(names) < 2:
        raise BadInput(*TOO_FEW)
    found = compared(names, root, anyway=request.anyway)
    comparison = found.comparison
    if comparison is None:
        raise BadInput(*as_text(found.notes[0]))
    # Of the best over each other one: does what wins small win large?
    ladders = {entry.ladder.name: entry.ladder for entry in found.entries}
    ranked = [ladders[rank.name] for rank in comparison.by_transferred]
    faster = speed_ups(ranked, request.to_width)
    record = {
        "studies": [
            {
                "study": name,
                "parameterization": found.parameterizations[name],
                "tuning": to_json(tuning) | {"share": tuning.flops / comparison.flops},
                "validation": to_json(validating),
            }
            for name, (tuning, validating) in found.costs.items()
        ],
        "differences": list(found.notes),
        "speed_up": to_json(faster),
        **to_json(comparison),
    }
    folder = request.out or comparison_folder(names, root)
    private_folder(folder)
    write_json(folder / "comparison.json", record)
    return CompareAnswer(found=found, faster=faster, folder=folder, root=root, record=record)


# Ranked by runs at each study's optimum.


def _by_runs(
    request: CompareRequest,
    names: Sequence[str],
    overrides: Sequence[str],
    root: Path,
    watcher: Watcher,
) -> RankAnswer:
    """Train round by round until the ranking has ended, and write what was found."""
    contenders, unlike, unfinished = _contenders(request, names, overrides, root)
    ranking, widths = _ranking(request, contenders), [*contenders[0].planned]
    width = request.to_width or widths[0]
    kinds = {c.name: c.experiment.settings.plugin_spec("parameterization").name for c in contenders}
    # Notices that studies had before they are written to, and what differs between them.
    notes = [*(notice for one in contenders for notice in one.study.notices), *unlike]
    by_name = {one.name: one for one in contenders}
    begins = [_placed(run, widths) for run in ranking.asked]
    known = [run for run in begins if by_name[run[0]].result(*run[1:]) is not None]
    if not known:
        timed = {one.name: one.seconds() for one in contenders}
        seconds = [timed[name](at) for name, at, _ in begins]
        check_hours(request.hours, seconds, ranking.slots, "this ranking begins")
    # Which runs follow the first round the losses decide: at most they are all the dearest.
    flops = math.fsum(by_name[name].flops(at) for name, at, _ in begins)
    dearest = max(one.flops(at) for one in contenders for at in widths)
    answer = RankAnswer(
        notes=tuple((note,) for note in dict.fromkeys(notes)),
        request=request,
        root=root,
        names=[one.name for one in contenders],
        overrides=overrides,
        ranking=ranking,
        width=width,
        widths=widths,
        parameterizations=kinds,
        unfinished=unfinished,
        known=len(known),
        flops=(flops, flops + (ranking.budget - ranking.runs) * dearest),
    )
    if request.dry_run:
        return answer
    with ExitStack() as stack:
        for one in contenders:
            one.open(stack)
        if waiting := _train(ranking, contenders, watcher, wait=not request.detach):
            done = ranking.runs - len(ranking.missing())
            fields = {each: getattr(answer, each) for each in answer.__dataclass_fields__}
            return QueuedRankAnswer(**fields, submitted=waiting, finished=done)
        failed, notices = list[Failure](), list[str]()
        for one in contenders:
            failed += failures_of(one.study.results(), one.experiment.settings.identity)
            notices += one.study.notices
    assert ranking.outcome is not None
    record = {
        "width": width,
        "widths": widths,
        "first_seed": contenders[0].first_seed(widths[0]),
        "runs": ranking.runs,
        "budget": ranking.budget,
        "looks": ranking.looks,
        "differences": unlike,
        "optima": {one.name: dict(one.planned[widths[0]][1]) for one in contenders},
        "ended": ranking.outcome.ended,
        "sentence": watcher.sentence(ranking.outcome),
        "needed": ranking.outcome.needed,
        "command": provenance()["command"],
    }
    outcome = Outcome.DONE
    if isinstance(ranking, Ranking):
        record["places"] = to_json(ranking.places)
    elif ranking.winner is not None:
        record |= {"answer": ranking.winner.answer, "variants": to_json(ranking.winner.variants)}
        outcome = STRICT[ranking.winner.answer] if request.strict else Outcome.DONE
    folder = request.out or comparison_folder(answer.names, root)
    private_folder(folder)
    path = folder / "settled.json"
    write_json(path, record)
    every = tuple((note,) for note in dict.fromkeys([*notes, *notices]))
    return replace(answer, outcome=outcome, notes=every, failures=failed, record=record, path=path)


@dataclass(kw_only=True)
class Contender:
    """A study at its optimum, `planned` at each width: a size, and hyperparameters in log2.

    At a width that is `searched` its seeds are fresh ones.
    """

    name: str
    experiment: Experiment
    planned: Mapping[int, tuple[LadderSize, Log2Hps]]
    study: Study
    searched: frozenset[int]
    # What failed before is tried again, its cause may be gone; what fails now is taken as it is.
    retry: set[str] = field(default_factory=set)

    def open(self, stack: ExitStack) -> None:
        """Lock the study, and write to it from here on."""
        settings = self.experiment.settings
        stack.enter_context(StudyLock(settings.folder))
        self.study = stack.enter_context(Study.open(settings.folder, settings.storage))
        self.retry = {r.key for r in self.study.results() if r.status == "failed"}

    def first_seed(self, width: int) -> int:
        """From which the seeds of a width count."""
        return FRESH_SEED if width in self.searched else 0

    def trial(self, width: int, seed: int) -> Trial:
        """The run of a seed at a width."""
        size, hps = self.planned[width]
        return self.experiment.trial(size, hps, self.first_seed(width) + seed, LADDER_PHASE)

    def result(self, width: int, seed: int) -> Result | None:
        """As far as the study has it; none that was stopped early."""
        key = self.trial(width, seed).key
        result = None if key in self.retry else self.study.get(key)
        return None if result is not None and result.status == "pruned" else result

    def flops(self, width: int) -> float:
        """Of a run; where nobody knows, what is in proportion to them."""
        spec = self.experiment.spec(self.planned[width][0])
        known, train = flops_of(spec), spec.train
        tokens = train.steps * train.batch_size * train.seq_len
        return float(width**2 * spec.depth * tokens) if math.isnan(known) else known

    def seconds(self) -> Callable[[int], float]:
        """Of a run by its width, as those of this size took, or by its work from others."""
        timed = trial_seconds(self.experiment.settings, self.study.results())
        return lambda width: timed.of(self.trial(width, 0))

    def train(self, runs: Sequence[tuple[int, int]], watcher: Watcher, *, wait: bool) -> None:
        """Train runs by width and seed; Submitted without `wait` where they are in a queue."""
        trials, settings = [self.trial(*run) for run in runs], self.experiment.settings
        known = self.study.results()
        title = f"compare: {self.name}"
        with progress_of(settings, watcher, title, len(trials), known=known) as bar:
            Sweep(self.experiment, self.study, bar, wait=wait).runs(trials)
        self.retry -= {trial.key for trial in trials}


def _placed(run: tuple[Any, ...], widths: Sequence[int]) -> tuple[str, int, int]:
    """A run of a ranking by name, width and seed: of one at a single size it names none."""
    name, *size, seed = run
    return name, widths[size[0] if size else 0], seed


def _ranking(request: CompareRequest, contenders: Sequence[Contender]) -> Ranking | TargetRanking:
    """What says by the studies' results which runs come next, and when it is decided."""
    by_name, widths = {one.name: one for one in contenders}, [*contenders[0].planned]

    def result(run: tuple[Any, ...]) -> Result | None:
        name, width, seed = _placed(run, widths)
        return by_name[name].result(width, seed)

    def loss(*run: Any) -> float | None:
        found = result(run)
        return None if found is None else found.objective

    def affordable(following: Sequence[tuple[Any, ...]]) -> int:
        """How many of these runs `hours` have room for, by the time that their sizes take."""
        assert request.hours is not None
        taken = [one.seconds for run in ranking.asked if (one := result(run)) is not None]
        timed = {name: one.seconds() for name, one in by_name.items()}
        placed = (_placed(run, widths) for run in following)
        seconds = (timed[name](width) for name, width, _ in placed)
        return fitting(seconds, request.hours * 3600 * slots - math.fsum(taken))

    workers = [getattr(one.experiment.settings.launcher, "workers", 1) for one in contenders]
    slots = max(count if isinstance(count, int) else 1 for count in workers)
    bound = None if request.hours is None else affordable
    ranking: Ranking | TargetRanking
    if request.to_width is None:
        ranking = Ranking([*by_name], loss, budget=request.budget, affordable=bound, slots=slots)
        return ranking
    first = contenders[0]
    sizes = [first.planned[width][0] for width in widths]
    ranking = TargetRanking(
        [*by_name],
        [{"width": float(size.width), "steps": float(size.steps)} for size in sizes],
        [first.flops(width) for width in widths],
        TargetQuestion(
            counts={"width": float(request.to_width)},
            floor=request.floor,
            exponent=request.exponent,
            error=request.error,
        ),
        loss,
        # It begins with those that all ladders have, without the one beyond, the dearest.
        begun=len(_common([one.experiment.settings for one in contenders]) & {*widths}),
        budget=request.budget,
        affordable=bound,
        slots=slots,
    )
    return ranking


def _train(
    ranking: Ranking | TargetRanking,
    contenders: Sequence[Contender],
    watcher: Watcher,
    *,
    wait: bool,
) -> int:
    """Train round by round until the ranking has ended; without `wait`, how many are in a queue."""
    looks, widths = 0, [*contenders[0].planned]
    while missing := ranking.missing():
        if ranking.looks > looks:
            looks = ranking.looks
            watcher.tell(watcher.sentence(ranking))
        runs: dict[str, list[tuple[int, int]]] = {one.name: [] for one in contenders}
        for name, *at in (_placed(run, widths) for run in missing):
            runs[name].append((at[0], at[1]))
        lacking = [one for one in contenders if runs[one.name]]
        waiting = 0
        # Jobs that outlive their driver are submitted for all studies before one is waited for.
        for one in lacking:
            if isinstance(one.experiment.settings.launcher, Scheduled):
                try:
                    one.train(runs[one.name], watcher, wait=False)
                except Submitted as submitted:
                    waiting += submitted.trials
        if waiting and not wait:
            return waiting
        for one in lacking if wait else ():
            one.train(runs[one.name], watcher, wait=True)
    return 0


def _contenders(
    request: CompareRequest, names: Sequence[str], overrides: Sequence[str], root: Path
) -> tuple[list[Contender], list[str], list[int]]:
    """The studies, opened, and what differs between them; BadInput for what cannot be ranked."""
    names = [find_study(name, root) for name in names]
    if len(names) < 2:
        raise BadInput(*TOO_FEW)
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each study once")
    if (first := request.baseline) is not None:
        if first not in names:
            raise ConfigError(K("baseline"), first, f"one of {', '.join(names)}")
        names = [first, *(name for name in names if name != first)]
    overrides = [*overrides, f"root={root}"]
    every = list[Settings]()
    for name in names:
        settings = resolve_study(*study_tree(name, overrides, trust=request.trust))
        if request.detach and not isinstance(settings.launcher, Scheduled):
            launcher = settings.plugin_spec("launcher").name
            allowed = (Keyword("detach"), " needs one with a queue: launcher=slurm")
            raise ConfigError("launcher", launcher, allowed)
        if not request.dry_run:
            check_storage_password(settings)
        check_seeds(settings, "seeds", ROUNDS.seeds[0])
        every.append(settings)
    widths = _widths(every, request)
    base = {settings.base.width for settings in every}
    contenders, unfinished = list[Contender](), list[int]()
    for name, settings in zip(names, every, strict=True):
        # A dry run prepares its data aside, and leaves nothing in a study.
        with tempfile.TemporaryDirectory() if request.dry_run else nullcontext() as temporary:
            experiment = open_experiment(settings, Path(temporary) if temporary else None)
        settings, study = experiment.settings, Study.read(experiment.settings.folder)
        found = planned_optimum(experiment, study)
        unfinished += [found.unfinished] * bool(found.unfinished)
        best = found.conclusion.best_log2
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
    notes = differences(
        {one.name: one.experiment.spec(one.planned[widths[0]][0]) for one in contenders}
    )
    if notes and not request.anyway:
        raise BadInput(*not_comparable(notes))
    return contenders, notes, unfinished


def _widths(studies: Sequence[Settings], request: CompareRequest) -> list[int]:
    """The width to train: the one that was asked for, else the widest that all ladders have.

    For a target all that they have, and one twice as wide, which is trained where that tells most.
    """
    common, target = _common(studies), request.to_width
    asked = request.at_width
    if asked is None and not common:
        told = ", ".join(f"{one.name}: {sorted(_ladder(one))}" for one in studies)
        instead: Text = ("give all the same transfer.widths",)
        if target is None:
            instead = ("name one with ", K("at_width", ...))
        raise BadInput(f"no width is on all ladders ({told}): ", *instead)
    if target is None:
        width = max(common) if asked is None else asked
        if (unfit := _unfit(studies, width)) is not None:
            raise ConfigError(K("at_width"), width, unfit)
        return [width]
    # A width that is trained needs no law: seeds there tell more.
    if target <= max(common):
        allowed = f"more than {max(common)}, the widest of the ladders: at one that they have ask "
        raise ConfigError(K("to_width"), target, (allowed, "with ", K("at_width", target)))
    # One width beyond the ladders, where all studies can have
    # it: nearer to the target runs tell more.
    wider = min(2 * max(common), target)
    return [*sorted(common), *[wider] * (_unfit(studies, wider) is None)]


def _ladder(study: Settings) -> set[int]:
    return {study.base.width, *(size.width for size in study.ladders().get("width", ()))}


def _common(studies: Sequence[Settings]) -> set[int]:
    """The widths that all ladders have."""
    return set.intersection(*map(_ladder, studies))


def _unfit(studies: Sequence[Settings], width: int) -> Text | None:
    """What widths are allowed of a study that cannot have this one; None where all can."""
    for settings in studies:
        try:
            size = replace(settings.ladder_base, width=width)
            check_model_size(settings, size)
            check_taken(settings, asdict(size))
        except ConfigError as error:
            return (f"one that {settings.name} can have: ", *error.args)
    return None
