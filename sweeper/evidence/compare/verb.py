"""Which variant wins, by the runs of any source; or by studies whose next runs are trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.errors import BadInput, Keyword
from sweeper.evidence.compare.decision import Winner, decide
from sweeper.evidence.compare.reading import VariantRuns, joined, variant_runs
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.flags import columns_text, ignored
from sweeper.evidence.runs.read import read, study_folder
from sweeper.verbs.answer import Outcome, VerbAnswer
from sweeper.verbs.requests import budget_of

if TYPE_CHECKING:
    from sweeper.evidence.compare.deciding import Deciding
    from sweeper.study.setup import Failure
    from sweeper.study.watcher import Watcher

K = Keyword


@dataclass(frozen=True, kw_only=True)
class WinnerAnswer(VerbAnswer):
    """Variants at a target; `studies` are ours and can be trained. `strict`: none written."""

    request: CompareRequest
    runs: VariantRuns
    winner: Winner
    folder: Path
    studies: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SettledAnswer(VerbAnswer):
    """Studies by runs that were trained for it at some of the `widths`, with `overrides`.

    `trained` is how many of the first round's runs are there, `flops` what that round takes, and
    what the budget does at most. So many of a round's runs are `submitted` to a queue, beside those
    that are `finished`, and nobody waits for them. `unfinished` has the number of trials of each
    study whose search is not at its end.
    """

    request: CompareRequest
    root: Path
    names: Sequence[str]
    overrides: Sequence[str]
    deciding: Deciding
    widths: Sequence[int]
    unfinished: Sequence[int]
    trained: int = 0
    flops: tuple[float, float] = (math.nan, math.nan)
    failures: Sequence[Failure] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    submitted: int = 0
    finished: int = 0


OF_SETTLE = ("budget", "detach", "dry_run")
OF_TABLES = ("by", "to_params", "to_tokens", "columns", "where")
STRICT = {"better": Outcome.DONE, "worse": Outcome.NOT_VALIDATED, "cannot say": Outcome.CANNOT_SAY}


def compare(request: CompareRequest, watcher: Watcher) -> VerbAnswer:
    """Which variant wins at the target, by the runs that are there, or with `settle` by more."""
    budget_of(request.budget)
    names = [name for name in OF_SETTLE if getattr(request, name)]
    if not request.settle and names:
        raise BadInput(K(names[0], ...), " is of what ", K("settle"), " trains: give both")
    if not request.settle:
        return _by_runs(request)
    if names := [name for name in OF_TABLES if getattr(request, name)]:
        raise BadInput(K(names[0], ...), " is of runs that are there, ", K("settle"), " of studies")
    return _settled(request, watcher)


def _by_runs(request: CompareRequest) -> WinnerAnswer:
    from sweeper.evidence.compare.studies import (
        TOO_FEW,
        check_studies,
        named_studies,
        question_of,
    )

    sources, root = named_studies(request.names, request.root)
    folders = [study_folder(source, root) for source in sources]
    if len(sources) == 1 and folders[0] is not None and request.by is None:
        raise BadInput(*TOO_FEW)
    ours = [each for each in folders if each is not None]
    unlike, ignore = check_studies(ours, ignored(request.ignore))
    every = [
        read(
            source,
            columns=columns_text(request.columns),
            where=request.where,
            ignore=ignore,
            root=root,
        )
        for source in sources
    ]
    runs = variant_runs(joined(every), request.by, request.baseline)
    # Studies of ours share the draws of a seed.
    paired = len(ours) == len(folders)
    runs = replace(runs, notes=(*runs.notes, *unlike), paired=paired)
    asked = {"params": request.to_params, "tokens": request.to_tokens, "width": request.to_width}
    counts = {role: float(value) for role, value in asked.items() if value is not None}
    question = question_of(request, counts)
    winner = decide(runs, question)
    studies = {folder.name: folder for folder in ours if folder.name in runs.names}
    return WinnerAnswer(
        studies=studies if {*studies} == {*runs.names} else {},
        outcome=STRICT[winner.answer] if request.strict else Outcome.DONE,
        request=request,
        runs=runs,
        winner=winner,
        folder=_folder([Path(each.name).stem or "runs" for each in every], root),
    )


def _folder(names: Sequence[str], root: Path) -> Path:
    from sweeper.trial import digest

    name = "+".join(names)
    if len(name) > 120:
        name = f"{name[:100]}+{digest([*names])[:12]}"
    return root / "comparisons" / name


def _settled(request: CompareRequest, watcher: Watcher) -> SettledAnswer:
    # What only reads loads no torch.
    from sweeper.evidence.compare.studies import named_studies
    from sweeper.evidence.compare.training import contenders_of, deciding_of, train
    from sweeper.files import private_folder, write_json
    from sweeper.records import to_json
    from sweeper.study.setup import Failure, failures_of, provenance
    from sweeper.sweep.ladders import check_hours

    names_and_overrides, root = named_studies(request.names, request.root)
    overrides = [word for word in names_and_overrides if "=" in word]
    names = [word for word in names_and_overrides if "=" not in word]
    contenders, unlike, unfinished = contenders_of(request, names, overrides, root)
    deciding, widths = deciding_of(request, contenders), [*contenders[0].planned]
    by_name = {each.name: each for each in contenders}
    begins = [(name, widths[size], seed) for name, size, seed in deciding.asked]
    trained = [run for run in begins if by_name[run[0]].result(*run[1:]) is not None]
    if not trained:
        timed = {each.name: each.seconds() for each in contenders}
        seconds = [timed[name](at) for name, at, _ in begins]
        check_hours(budget_of(request.budget)[1], seconds, deciding.slots, "this comparison begins")
    # Which runs follow the first round the losses decide: at most they are all the dearest.
    flops = math.fsum(by_name[name].flops(at) for name, at, _ in begins)
    dearest = max(each.flops(at) for each in contenders for at in widths)
    # Notices that studies had before they are written to, and what differs between them.
    notes = [*(notice for each in contenders for notice in each.study.notices), *unlike]
    answer = SettledAnswer(
        notes=tuple((note,) for note in dict.fromkeys(notes)),
        request=request,
        root=root,
        names=[each.name for each in contenders],
        overrides=overrides,
        deciding=deciding,
        widths=widths,
        unfinished=unfinished,
        trained=len(trained),
        flops=(flops, flops + (deciding.budget - deciding.runs) * dearest),
    )
    if request.dry_run:
        return answer
    with ExitStack() as stack:
        for each in contenders:
            each.open(stack)
        if waiting := train(deciding, contenders, watcher, wait=not request.detach):
            done = deciding.runs - len(deciding.missing())
            return replace(answer, submitted=waiting, finished=done)
        failed = list[Failure]()
        for each in contenders:
            failed += failures_of(each.study.results(), each.experiment.settings.identity)
            notes += each.study.notices
    assert deciding.outcome is not None
    winner = deciding.winner
    record = {
        "widths": widths,
        "first_seed": contenders[0].first_seed(widths[0]),
        "runs": deciding.runs,
        "budget": deciding.budget,
        "looks": deciding.looks,
        "differences": unlike,
        "optima": {each.name: dict(each.planned[widths[0]][1]) for each in contenders},
        "ended": deciding.outcome.ended,
        "sentence": watcher.sentence(deciding.outcome),
        "command": provenance()["command"],
        "answer": winner.answer if winner else "cannot say",
        "variants": to_json(winner.variants) if winner else [],
    }
    folder = _folder(answer.names, root)
    private_folder(folder)
    path = folder / "settled.json"
    write_json(path, record)
    return replace(
        answer,
        outcome=STRICT[record["answer"]] if request.strict else Outcome.DONE,
        notes=tuple((note,) for note in dict.fromkeys(notes)),
        failures=failed,
        record=record,
        path=path,
    )
