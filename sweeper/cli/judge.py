"""`sweeper judge`: a verdict on the runs that there are already. It trains nothing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from sweeper.cli.next import NextCommand
from sweeper.cli.output import DONE, NOT_VALIDATED, Output
from sweeper.existing.judged import Judged, Question, judge_source
from sweeper.existing.source import Source


def judge_table(
    path: Path,
    columns: str,
    where: str,
    question: Question,
    output: Output,
    out: Path | None,
    root: Path,
    *,
    strict: bool = False,
) -> int:
    """Judge a table's runs, show the verdict and write it."""
    source = Source.read(path, where)
    command = shlex.join(["sweeper", *sys.argv[1:]])
    judged = judge_source(source, columns, question, command)
    read = ", ".join(f"{role} is {column!r}" for role, column in judged.columns.items())
    output.tell(f"{judged.runs} runs of {path}: {read}")
    return _report(judged, output, out or root / "judged" / path.stem, strict=strict)


def _report(judged: Judged, output: Output, folder: Path, *, strict: bool) -> int:
    from sweeper.report.judged import headline, tables, write_judged

    for table in tables(judged):
        table.print(output.people)
    places = write_judged(judged, folder)
    output.notes(judged.notes)
    if (verdict := judged.verdict) is not None and verdict.note:
        output.notes([verdict.note])
    for line in headline(judged)[:-1]:
        output.say(line)
    output.end(headline(judged)[-1], places, judged.record, _next(judged))
    return NOT_VALIDATED if strict and judged.answer != "holds" else DONE


def _next(judged: Judged) -> NextCommand | None:
    """The command that trains what would settle it, where the table is of a study of ours."""
    if not (judged.study and judged.overrides):
        return None
    target = judged.verdict.target if judged.verdict else None
    width = target.size if target else max(int(curve.size.width) for curve in judged.curves)
    return NextCommand.of(
        "transfer",
        "--to-width",
        str(width),
        "--validate",
        *judged.overrides,
        study=judged.study,
        why="to settle it",
    )
