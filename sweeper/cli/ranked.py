"""`sweeper compare --settle`: studies ranked with the fewest runs, each at its own optimum."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sweeper.cli.compare import comparison_folder, differences, not_comparable
from sweeper.cli.shared import progress
from sweeper.cli.transfer import check_storage_password, planned_optimum
from sweeper.cli.validate import Settle
from sweeper.config.settings import Experiment, Settings, check_model_size, check_seeds
from sweeper.config.studies import study_tree
from sweeper.decide.ranking import ROUNDS, Ranking
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.files import private_folder, write_json
from sweeper.launch.executor import Scheduled
from sweeper.records import to_json
from sweeper.report import comparison as show
from sweeper.report.next import NextCommand
from sweeper.report.output import DONE, Output
from sweeper.report.sentences import failures, ranking_end, ranking_progress
from sweeper.stats.ladder import LadderSize
from sweeper.study.lock import StudyLock
from sweeper.study.setup import LADDER_PHASE, provenance
from sweeper.study.study import Study, find_study
from sweeper.sweep.experiment import check_taken, open_experiment, resolve_study
from sweeper.sweep.replay import planned_log2
from sweeper.sweep.sweep import Submitted, Sweep
from sweeper.trial import Log2Hps, Result, Trial

FRESH_SEED = 3 * 10**6
"""The first seed at a width at which one of the studies searched: its optimum was chosen there by
other seeds, whose losses are too low."""


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """What `sweeper compare --settle` is asked for; `width` None: the widest of all ladders."""

    names: Sequence[str]
    overrides: Sequence[str]
    root: Path
    settle: Settle
    width: int | None = None
    anyway: bool = False
    out: Path | None = None
    trust: bool = False
    detach: bool = False
    dry_run: bool = False


@dataclass(kw_only=True)
class Contender:
    """A study at its optimum: `hps` are planned at `size`, log2; its seeds count from the first."""

    name: str
    experiment: Experiment
    size: LadderSize
    hps: Log2Hps
    study: Study
    first_seed: int
    # What failed before is tried again, its cause may be gone; what fails now is taken as it is.
    retry: set[str] = field(default_factory=set)

    def open(self, stack: ExitStack) -> None:
        """Lock the study, and write to it from here on."""
        settings = self.experiment.settings
        stack.enter_context(StudyLock(settings.folder))
        self.study = stack.enter_context(Study.open(settings.folder, settings.storage))
        self.retry = {r.key for r in self.study.results() if r.status == "failed"}

    def trial(self, seed: int) -> Trial:
        """The run of a seed."""
        return self.experiment.trial(self.size, self.hps, self.first_seed + seed, LADDER_PHASE)

    def result(self, seed: int) -> Result | None:
        """As far as the study has it; none that was stopped early."""
        key = self.trial(seed).key
        result = None if key in self.retry else self.study.get(key)
        return None if result is not None and result.status == "pruned" else result

    def train(self, seeds: Sequence[int], output: Output, *, wait: bool) -> None:
        """Train the seeds; Submitted without `wait` where their jobs are in a queue."""
        trials, settings = [self.trial(seed) for seed in seeds], self.experiment.settings
        known = self.study.results()
        with progress(settings, output, f"compare: {self.name}", len(trials), known=known) as bar:
            Sweep(self.experiment, self.study, bar, wait=wait).runs(trials)
        self.retry -= {trial.key for trial in trials}


def rank_studies(request: RankRequest, output: Output) -> int:
    """Rank the studies by runs at their optima until it is decided, and write what was found."""
    contenders, notes = _contenders(request, output)
    output.notes(notes)
    ranking, width = _ranking(request.settle, contenders), contenders[0].size.width
    again = _command_again(request, [one.name for one in contenders])
    if request.dry_run:
        seeds = ranking.seeds[contenders[0].name]
        known = sum(one.result(seed) is not None for one in contenders for seed in range(seeds))
        begins = f"It begins with {ranking.runs} runs at width {width}, {seeds} seeds each"
        sentence = f"{begins} ({known} of them are known), and ends with {ranking.budget} at most."
        document = {"width": width, "begins": ranking.runs, "known": known}
        output.end(sentence, {}, {**document, "budget": ranking.budget}, again)
        return DONE
    with ExitStack() as stack:
        for one in contenders:
            one.open(stack)
        if waiting := _train(ranking, contenders, output, wait=not request.detach):
            done = ranking.runs - len(ranking.missing())
            sentence = f"{waiting} trials are in jobs now, {done} are finished."
            document = {"submitted": waiting, "finished": done}
            output.end(sentence, {}, document, replace(again, why="to collect them, and go on"))
            return DONE
        for one in contenders:
            found = failures(one.study.results(), one.experiment.settings.identity)
            output.notes([*one.study.notices, *found])
    _conclude(ranking, contenders, notes, request, again, output)
    return DONE


def _ranking(settle: Settle, contenders: Sequence[Contender]) -> Ranking:
    """What says by the studies' results which runs come next, and when it is decided."""
    by_name = {one.name: one for one in contenders}

    def loss(name: str, seed: int) -> float | None:
        found = by_name[name].result(seed)
        return None if found is None else found.objective

    def affordable() -> int:
        """How many runs `hours` allow, by the time that those so far took."""
        assert settle.hours is not None
        found = [
            by_name[name].result(s) for name, count in ranking.seeds.items() for s in range(count)
        ]
        seconds = [one.seconds for one in found if one is not None]
        mean = sum(seconds) / max(1, len(seconds))
        return int(settle.hours * 3600 * slots / mean) if mean > 0 else ranking.budget

    workers = [getattr(one.experiment.settings.launcher, "workers", 1) for one in contenders]
    slots = max(count if isinstance(count, int) else 1 for count in workers)
    bound = None if settle.hours is None else affordable
    ranking = Ranking([*by_name], loss, budget=settle.budget, affordable=bound, slots=slots)
    return ranking


def _train(ranking: Ranking, contenders: Sequence[Contender], output: Output, *, wait: bool) -> int:
    """Train round by round until the ranking has ended; without `wait`, how many are in a queue."""
    looks = 0
    while missing := ranking.missing():
        if ranking.looks > looks:
            looks = ranking.looks
            output.tell(ranking_progress(ranking))
        seeds = {one.name: [s for name, s in missing if name == one.name] for one in contenders}
        lacking = [one for one in contenders if seeds[one.name]]
        waiting = 0
        # Jobs that outlive their driver are submitted for all studies before one is waited for.
        for one in lacking:
            if isinstance(one.experiment.settings.launcher, Scheduled):
                try:
                    one.train(seeds[one.name], output, wait=False)
                except Submitted as submitted:
                    waiting += submitted.trials
        if waiting and not wait:
            return waiting
        for one in lacking if wait else ():
            one.train(seeds[one.name], output, wait=True)
    return 0


def _conclude(
    ranking: Ranking,
    contenders: Sequence[Contender],
    notes: Sequence[str],
    request: RankRequest,
    again: NextCommand,
    output: Output,
) -> None:
    """Write and say how it ended; `notes` are what differs between the studies."""
    assert ranking.outcome is not None
    width = contenders[0].size.width
    if ranking.places:
        kinds = {
            c.name: c.experiment.settings.plugin_spec("parameterization").name for c in contenders
        }
        output.show(show.ranking_table(ranking, kinds, width))
    record = {
        "width": width,
        "first_seed": contenders[0].first_seed,
        "runs": ranking.runs,
        "budget": ranking.budget,
        "looks": ranking.looks,
        "differences": notes,
        "optima": {one.name: dict(one.hps) for one in contenders},
        "places": to_json(ranking.places),
        "ended": ranking.outcome.ended,
        "sentence": ranking_end(ranking.outcome),
        "needed": ranking.outcome.needed,
        "command": provenance()["command"],
    }
    folder = request.out or comparison_folder([one.name for one in contenders], request.root)
    private_folder(folder)
    path = folder / "settled.json"
    write_json(path, record)
    sentence = f"{show.ranked_sentence(ranking)} {ranking_end(ranking.outcome)}."
    next_command = _next(ranking, width, request.root, again)
    output.end(sentence, {"record": path}, record, next_command)


def _contenders(request: RankRequest, output: Output) -> tuple[list[Contender], list[str]]:
    """The studies, opened, and what differs between them; BadInput for what cannot be ranked."""
    names = [find_study(name, request.root) for name in request.names]
    if len(names) < 2:
        raise BadInput("compare takes two studies or more: sweeper compare STUDY STUDY")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each study once")
    overrides = [*request.overrides, f"root={request.root}"]
    every = list[Settings]()
    for name in names:
        settings = resolve_study(*study_tree(name, overrides, trust=request.trust))
        if request.detach and not isinstance(settings.launcher, Scheduled):
            launcher = settings.plugin_spec("launcher").name
            allowed = "--detach needs one with a queue: launcher=slurm"
            raise ConfigError("launcher", launcher, allowed)
        if not request.dry_run:
            check_storage_password(settings)
        check_seeds(settings, "--settle, seeds", ROUNDS.seeds[0])
        every.append(settings)
    width = _width(every, request.width)
    for settings in every:
        try:
            size = replace(settings.ladder_base, width=width)
            check_model_size(settings, size)
            check_taken(settings, asdict(size))
        except ConfigError as error:
            allowed = f"one that {settings.name} can have: {error}"
            raise ConfigError(Keyword("at_width"), width, allowed) from error
    searched = any(settings.base.width == width for settings in every)
    contenders = list[Contender]()
    for name, settings in zip(names, every, strict=True):
        with tempfile.TemporaryDirectory() as temporary:
            experiment = open_experiment(settings, Path(temporary) if request.dry_run else None)
        settings = experiment.settings
        size = settings.with_steps(replace(settings.ladder_base, width=width))
        study = Study.read(settings.folder)
        hps = planned_log2(experiment, size, planned_optimum(experiment, study, output))
        contenders.append(
            Contender(
                name=name,
                experiment=experiment,
                size=size,
                hps=hps,
                study=study,
                first_seed=FRESH_SEED if searched else 0,
            )
        )
    notes = differences({one.name: one.experiment.spec(one.size) for one in contenders})
    if notes and not request.anyway:
        raise BadInput(not_comparable(notes))
    return contenders, notes


def _width(studies: Sequence[Settings], asked: int | None) -> int:
    """The width that was asked for, else the widest that all ladders have."""
    ladders = {
        one.name: {one.base.width, *(size.width for size in one.ladders().get("width", ()))}
        for one in studies
    }
    common = set.intersection(*ladders.values())
    if asked is None and not common:
        told = ", ".join(f"{name}: {sorted(widths)}" for name, widths in ladders.items())
        raise BadInput(f"no width is on all ladders ({told}): name one with --at-width")
    return max(common) if asked is None else asked


def _command_again(request: RankRequest, names: Sequence[str]) -> NextCommand:
    """This command to go on with, waiting for what it trains."""
    options = ["--settle", *(["--at-width", str(request.width)] if request.width else [])]
    options += ["--anyway"] * request.anyway
    hours, budget = request.settle.hours, request.settle.budget
    options += ["--budget", str(budget)] if budget is not None else []
    options += ["--hours", f"{hours:g}"] if hours is not None else []
    arguments = (*names, *options, *request.overrides)
    return NextCommand.of("compare", *arguments, root=request.root, why="to train them")


def _next(ranking: Ranking, width: int, root: Path, again: NextCommand) -> NextCommand | None:
    """A plan with the best; the same with the budget that would do; else what curves say."""
    outcome = ranking.outcome
    assert outcome is not None
    if outcome.ended == "decided":
        leader, why = ranking.places[0].name, "to see whether the best one transfers"
        target = ("--to-width", str(2 * width), "--validate", "--settle")
        return NextCommand.of("transfer", *target, study=leader, root=root, why=why)
    if outcome.needed is None or outcome.ended not in ("budget", "hopeless"):
        return None
    unbound = again.without("--budget", "--hours").arguments
    more = ("--budget", str(outcome.needed))
    return replace(again, arguments=(*unbound, *more), why="to decide it with as many runs")
