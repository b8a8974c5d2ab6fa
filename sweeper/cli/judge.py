"""`sweeper judge`: a verdict on the runs that there are already. It trains nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sweeper.decide.judged import Judged, Question, judge_place, judge_source
from sweeper.errors import BadInput
from sweeper.report.answer import Sentence
from sweeper.report.next import NextCommand, next_of, validated_by
from sweeper.report.output import DONE, NOT_VALIDATED, Output
from sweeper.report.runs import study_source
from sweeper.report.saved import save_study, saved_folder
from sweeper.runs.source import Source
from sweeper.study.folder import StudyFolder, is_study
from sweeper.study.setup import command_line
from sweeper.study.study import find_study
from sweeper.table import counted


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """What `sweeper judge` was asked: runs at a `place`, or those of a `study` of ours.

    Of a storage of Optuna `study` is one of its own.
    """

    place: str | None
    study: str | None
    columns: str
    where: str
    question: Question
    save: str | None
    strict: bool
    out: Path | None
    root: Path


def judge(request: JudgeRequest, output: Output) -> int:
    """Judge runs, show the verdict and write it; with `save`, keep them as a study."""
    from sweeper.report.judged import (
        answers,
        end_lines,
        rate_lines,
        tables,
        trend_lines,
        write_judged,
    )

    place = request.place
    if place is None and request.study is None:
        raise BadInput(
            "judge takes runs: a table, a folder of runs, wandb:ENTITY/PROJECT, an Optuna "
            "storage's URL, or --study with a study of yours"
        )
    kept = saved_folder(request.root, request.save) if request.save is not None else None
    command = command_line()
    if place is None:
        place = str(request.root / find_study(request.study, request.root))
    if place == "-":
        source = Source.piped(request.where)
        judged = judge_source(source, request.columns, request.question, command)
        out = request.out or request.root / "judged" / "stdin"
    elif is_study(folder := Path(place)):
        source = study_source(folder, request.where, request.question.reading.axis)
        judged = judge_source(source, request.columns, request.question, command)
        out = request.out or StudyFolder(folder).judged
    else:
        judged = judge_place(place, request.columns, request.where, request.question, command)
        name = re.sub(r"[^\w.-]+", "-", Path(judged.source).stem).strip("-.") or "runs"
        out = request.out or request.root / "judged" / name
    if kept is not None:
        save_study(judged, kept)
    read = ", ".join(f"{role} is {column!r}" for role, column in judged.columns.items())
    output.tell(f"{counted(judged.runs, 'run')} of {judged.source}: {read}")
    output.within(out)
    for table in tables(judged):
        output.show(table)
    places = write_judged(judged, out)
    for line in end_lines(judged):
        output.say(line)
    # The number that was asked for: never left out for want of room.
    for line in trend_lines(judged, whole=output.verbose):
        output.say(line)
    output.notes(judged.notes)
    if (verdict := judged.verdict) is not None and verdict.note:
        output.notes([verdict.note])
    next_command = _next(judged, request.root)
    if kept is not None:
        places["study"] = kept
        output.notes(
            [
                f"the study {kept.name} holds these runs, and not what trained them: report, "
                "compare, predict and judge take it, and nothing in it can be continued"
            ]
        )
        next_command = NextCommand.of(
            "report", study=kept.name, root=request.root, why="to see it as a study"
        )
    *first, last = [*answers(judged), *rate_lines(judged)]
    for line in first:
        output.show(Sentence(line))
    output.end(last, places, judged.record, next_command)
    return NOT_VALIDATED if request.strict and judged.answer != "holds" else DONE


def _next(judged: Judged, root: Path) -> NextCommand | None:
    """The command that trains what would settle it, where the table is of a study of ours."""
    if not (judged.study and judged.overrides):
        return None
    # Longer runs are another study's: a search comes first.
    if any(word.startswith("train.") for word in judged.overrides):
        return next_of(root / judged.study)
    target, ladder = judged.verdict.target if judged.verdict else None, list[str]()
    width = target.size if target else max(int(curve.size.width) for curve in judged.curves)
    command = validated_by(root / judged.study)
    if command is not None:
        changed = {word.partition("=")[0] for word in judged.overrides}
        ladder = [w for w in command.of_ladders if w.lstrip("+").partition("=")[0] not in changed]
    return NextCommand.of(
        "transfer",
        "--to-width",
        str(width),
        "--validate",
        *ladder,
        *judged.overrides,
        study=judged.study,
        root=root,
        why="to settle it",
    )
