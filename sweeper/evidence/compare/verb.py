"""Which variant wins at a target, by runs of any source; or studies ranked, and by more runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, Keyword, as_text
from sweeper.evidence.compare.decision import TargetQuestion, Winner, decide
from sweeper.evidence.compare.ladders import (
    TOO_FEW,
    ComparedStudies,
    compared,
    comparison_folder,
    named_studies,
)
from sweeper.evidence.compare.ranking import Ranking, TargetRanking
from sweeper.evidence.compare.reading import VariantRuns, joined, variant_runs
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.compare.speed import SpeedUp, speed_ups
from sweeper.evidence.flags import columns_text, ignored
from sweeper.evidence.runs.read import read, study_folder
from sweeper.files import private_folder, write_json
from sweeper.records import to_json
from sweeper.study.setup import Failure, failures_of, provenance
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import Outcome, SubmittedAnswer, VerbAnswer

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
STRICT = {"better": Outcome.DONE, "worse": Outcome.NOT_VALIDATED, "cannot say": Outcome.CANNOT_SAY}


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
    sources = [
        read(
            source,
            columns=columns_text(request.columns),
            where=request.where,
            ignore=ignored(request.ignore),
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
    # What only reads loads no torch.
    from sweeper.evidence.compare.contenders import (
        RankingOptions,
        contenders_of,
        placed,
        ranking_of,
        train_ranking,
    )
    from sweeper.sweep.ladders import check_hours

    asked = RankingOptions(
        **{each: getattr(request, each) for each in RankingOptions.__dataclass_fields__}
    )
    contenders, unlike, unfinished = contenders_of(asked, names, overrides, root)
    ranking, widths = ranking_of(asked, contenders), [*contenders[0].planned]
    width = request.to_width or widths[0]
    kinds = {c.name: c.experiment.settings.plugin_spec("parameterization").name for c in contenders}
    # Notices that studies had before they are written to, and what differs between them.
    notes = [*(notice for one in contenders for notice in one.study.notices), *unlike]
    by_name = {one.name: one for one in contenders}
    begins = [placed(run, widths) for run in ranking.asked]
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
        if waiting := train_ranking(ranking, contenders, watcher, wait=not request.detach):
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
