"""A comparison answered: which study is the best, and what would tell more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.errors import Text, as_text
from sweeper.evidence.compare import tables as show
from sweeper.evidence.compare.carried import winner_shown
from sweeper.evidence.compare.ladders import ComparedStudy, ladder_call
from sweeper.evidence.compare.ranking import Ranking, TargetRanking
from sweeper.evidence.compare.studies import StudyComparison, seeds_needed
from sweeper.evidence.compare.verb import CompareAnswer, QueuedRankAnswer, RankAnswer, WinnerAnswer
from sweeper.evidence.compare.words import SENTENCES as SENTENCES
from sweeper.evidence.compare.words import ranking_end
from sweeper.report import console
from sweeper.report.answer import Item, Shown
from sweeper.report.drawing import save
from sweeper.report.next import Next, validated_by
from sweeper.report.sentences import failure_notes, unfinished_notes
from sweeper.verbs.requests import TransferRequest


def shown(answer: CompareAnswer | RankAnswer | WinnerAnswer, *, verbose: bool = False) -> Shown:
    """The studies in their order, best first; the figure of their curves is written."""
    if isinstance(answer, WinnerAnswer):
        return winner_shown(answer)
    if isinstance(answer, RankAnswer):
        return _ranked(answer)
    found, comparison = answer.found, answer.found.comparison
    assert comparison is not None
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
        next=after_comparison(comparison, found.entries),
        folder=answer.folder,
    )


def after_comparison(comparison: StudyComparison, entries: Sequence[ComparedStudy]) -> list[Next]:
    """The best study's plan; with none told apart, seeds that would tell; empty where none do."""
    folders = {entry.ladder.name: entry.folder for entry in entries}
    leader = comparison.by_transferred[0]
    # A place is an interval, `first` to `last`: of this study the seeds leave only one.
    if leader.last == 1:
        width = 2 * max(w.width for c in comparison.candidates for w in c.widths)
        root = folders[leader.name].parent
        request = TransferRequest(to_width=width, study=leader.name, root=root)
        return [Next(request, "to plan with the best")]
    seeds = seeds_needed(comparison.by_transferred, comparison.seeds)
    if seeds is None:
        return []
    first = [rank.name for rank in comparison.by_transferred if rank.first == 1]
    commands = [_more_seeds(folders[name], seeds) for name in first]
    return [command for command in commands if command is not None]


def _more_seeds(folder: Path, seeds: int) -> Next | None:
    """The command of the study's verdict over width, with as many seeds.

    Where no record keeps it, the one that trains the ladder of the study's configuration.
    """
    override, why = f"transfer.seeds={seeds}", "to tell them apart by more seeds"
    command = validated_by(folder, "width")
    if command is None:
        return Next(ladder_call(folder, override), why)
    # A ladder that settles takes its seeds by itself.
    return command.changed(override, why=why, settle=False, budget=None, hours=None)


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


def _begins(answer: RankAnswer, again: Next, notes: Sequence[str | Text]) -> Shown:
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
    answer: RankAnswer, ranking: TargetRanking, again: Next, notes: list[str | Text]
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
    why, budget = "to go on with twice the budget", 2 * ranking.outcome.budget
    unbound = Next(replace(again.request, budget=budget, hours=None), why)
    first = ranking.winner.variants[0]
    best = first.name if first.answer == "better" else ranking.winner.baseline
    plan = _settled(answer.width, best, answer.root, why="to see whether its optimum transfers")
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


def _command_again(answer: RankAnswer) -> Next:
    """The same to go on with, waiting for what it trains."""
    words, root = (*answer.names, *answer.overrides), answer.root
    request = replace(answer.request, names=words, root=root, detach=False, dry_run=False)
    return Next(request, "to train them")


def _settled(width: int, study: str, root: Path, why: str) -> Next:
    request = TransferRequest(to_width=width, validate=True, settle=True, study=study, root=root)
    return Next(request, why)


def _next(ranking: Ranking, width: int, root: Path, again: Next) -> Next | None:
    """A plan with the best; the same with the budget that would do; else what curves say."""
    outcome = ranking.outcome
    assert outcome is not None
    if outcome.ended == "decided":
        why = "to see whether the best one transfers"
        return _settled(2 * width, ranking.places[0].name, root, why)
    if outcome.needed is None or outcome.ended not in ("budget", "hopeless"):
        return None
    request = replace(again.request, budget=outcome.needed, hours=None)
    return Next(request, "to decide it with as many runs")
