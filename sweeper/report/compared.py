"""A comparison answered: which study is the best, and what would tell more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.decide.compare import StudyComparison, seeds_needed
from sweeper.decide.ranking import Ranking, TargetRanking
from sweeper.errors import SHELL, Text, as_text
from sweeper.report import comparison as show
from sweeper.report import console
from sweeper.report.answer import Item
from sweeper.report.drawing import save
from sweeper.report.next import NextCommand, options, validated_by
from sweeper.report.present import Shown
from sweeper.report.sentences import failure_notes, unfinished_notes
from sweeper.report.sentences_ranking import SENTENCES as SENTENCES
from sweeper.report.sentences_ranking import ranking_end
from sweeper.report.winner import winner_shown
from sweeper.study.study import is_saved
from sweeper.sweep.compared import ComparedStudy, ladder_call
from sweeper.verbs.compare import CompareAnswer, QueuedRankAnswer, RankAnswer, WinnerAnswer


def shown(answer: CompareAnswer | RankAnswer | WinnerAnswer, *, verbose: bool = False) -> Shown:
    """The studies in their order, best first; the figure of their curves is written."""
    if isinstance(answer, WinnerAnswer):
        return winner_shown(answer)
    if isinstance(answer, RankAnswer):
        return _ranked(answer)
    found, comparison = answer.found, answer.found.comparison
    assert comparison is not None
    next_commands = after_comparison(comparison, found.entries)
    if not next_commands:
        why = "to see them on one page"
        next_commands = [NextCommand.of("report", *found.costs, root=answer.root, why=why)]
    picture, _ = save(show.comparison_figure(comparison), answer.folder / "comparison")
    places, *others = show.tables(comparison, found.parameterizations, found.costs)
    if answer.faster:
        others.insert(0, show.speed_table(answer.faster))
    sentences = show.findings(comparison)
    return Shown(
        items=[places, *(replace(table, detail=True) for table in others)],
        notes=[("compared anyway: ", *as_text(note)) for note in found.notes],
        answer=" ".join(sentences),
        places={"figure": picture},
        document={**answer.record, "found": sentences, "figure": str(picture)},
        next=next_commands,
        folder=answer.folder,
    )


def after_comparison(
    comparison: StudyComparison, entries: Sequence[ComparedStudy]
) -> list[NextCommand]:
    """The best study's plan; with none told apart, seeds that would tell; empty where none do.

    None for studies that were saved from tables: nothing in them can be continued.
    """
    folders = {entry.ladder.name: entry.folder for entry in entries if not is_saved(entry.folder)}
    leader = comparison.by_transferred[0]
    # A place is an interval, `first` to `last`: of this study the seeds leave only one.
    if leader.last == 1:
        if leader.name not in folders:
            return []
        width = 2 * max(w.width for c in comparison.candidates for w in c.widths)
        root, why = folders[leader.name].parent, "to plan with the best"
        target = ("--to-width", str(width))
        return [NextCommand.of("transfer", *target, study=leader.name, root=root, why=why)]
    seeds = seeds_needed(comparison.by_transferred, comparison.seeds)
    if seeds is None:
        return []
    first = [rank.name for rank in comparison.by_transferred if rank.first == 1]
    commands = [_more_seeds(folders[name], seeds) for name in first if name in folders]
    return [command for command in commands if command is not None]


def _more_seeds(folder: Path, seeds: int) -> NextCommand | None:
    """The command of the study's verdict over width, with as many seeds.

    Where no record keeps it, the one that trains the ladder of the study's configuration.
    """
    override, why = f"transfer.seeds={seeds}", "to tell them apart by more seeds"
    command = validated_by(folder, "width")
    if command is None:
        return NextCommand.recorded(SHELL.call(ladder_call(folder, override)), why)
    # A ladder that settles takes its seeds by itself.
    return command.without("--settle", "--budget", "--hours").with_arguments(override, why=why)


def _ranked(answer: RankAnswer) -> Shown:
    """Studies ranked by runs at their optima, or how that begins, or is left in a queue."""
    ranking, width = answer.ranking, answer.width
    again = _command_again(answer)
    notes: list[str | Text] = [*answer.notes]
    for trials in answer.unfinished:
        notes += unfinished_notes(trials)
    if isinstance(answer, QueuedRankAnswer):
        return Shown(
            notes=notes,
            answer=console.in_jobs(answer.submitted, answer.finished, answer.failed),
            document={"submitted": answer.submitted, "finished": answer.finished},
            next=[replace(again, why="to collect them, and go on")],
        )
    if ranking.outcome is None or answer.path is None:
        return _begins(answer, again, notes)
    every = [*notes, *failure_notes(answer.failures)]
    if isinstance(ranking, TargetRanking):
        return _at_target(answer, ranking, again, every)
    items: list[Item] = []
    if ranking.places:
        items.append(show.ranking_table(ranking, answer.parameterizations, width))
    return Shown(
        items=items,
        notes=every,
        answer=f"{show.ranked_sentence(ranking)} {ranking_end(ranking.outcome)}.",
        places={"record": answer.path},
        document=answer.record,
        next=[_next(ranking, width, answer.root, again)],
    )


def _begins(answer: RankAnswer, again: NextCommand, notes: Sequence[str | Text]) -> Shown:
    """What would run, and what it takes."""
    ranking, widths = answer.ranking, answer.widths
    seeds = next(iter(ranking.seeds.values()))
    at = dict.fromkeys(widths[: len(ranking.seeds) // len(answer.names)])
    where = f"width{'s' * (len(at) > 1)} {', '.join(map(str, at))}"
    begins = f"It begins with {ranking.runs} runs at {where}, {seeds} seeds each"
    known = f"({answer.known} of them are known)"
    cost = "{:.2g} FLOPs to begin with, {:.2g} at most".format(*answer.flops)
    return Shown(
        notes=notes,
        answer=f"{begins} {known}, and ends with {ranking.budget} at most: {cost}.",
        document={
            "width": answer.width,
            "widths": [*widths],
            "begins": ranking.runs,
            "known": answer.known,
            "budget": ranking.budget,
            "flops": {"begins": answer.flops[0], "most": answer.flops[1]},
        },
        next=[again],
    )


def _at_target(
    answer: RankAnswer, ranking: TargetRanking, again: NextCommand, notes: list[str | Text]
) -> Shown:
    """The variants at the target, as of runs from anywhere, and how their training ended."""
    assert ranking.outcome is not None and answer.path is not None
    end = f"{ranking_end(ranking.outcome)}."
    if ranking.winner is None:
        return Shown(answer=end, notes=notes, places={"record": answer.path}, next=[again])
    of_runs = winner_shown(
        WinnerAnswer(
            request=answer.request,
            runs=ranking.variant_runs(),
            winner=ranking.winner,
            folder=answer.path.parent,
        )
    )
    unbound = again.without("--budget", "--hours").with_arguments(
        "--budget", str(2 * ranking.outcome.budget), why="to go on with twice the budget"
    )
    first = ranking.winner.variants[0]
    best = first.name if first.answer == "better" else ranking.winner.baseline
    plan = NextCommand.of(
        "transfer",
        *("--to-width", str(answer.width), "--validate", "--settle"),
        study=best,
        root=answer.root,
        why="to see whether its optimum transfers",
    )
    following = {"budget": unbound, "decided": plan}.get(ranking.outcome.ended)
    return replace(
        of_runs,
        before=(),
        notes=[*of_runs.notes, *notes],
        answer=f"{of_runs.answer} {end}",
        places={**of_runs.places, "record": answer.path},
        document={**of_runs.document, **answer.record},
        next=[following],
    )


def _command_again(answer: RankAnswer) -> NextCommand:
    """The same command to go on with, waiting for what it trains."""
    request = answer.request
    asked = options(
        settle=True,
        at_width=request.at_width,
        to_width=request.to_width,
        baseline=request.baseline,
        anyway=request.anyway,
        budget=request.budget,
        hours=request.hours,
    )
    arguments = (*answer.names, *asked, *answer.overrides)
    return NextCommand.of("compare", *arguments, root=answer.root, why="to train them")


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
