"""`sweeper report A B`: several studies on one page, and the picture of their curves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sweeper.decide.speed import speed_ups
from sweeper.errors import SHELL, ConfigError, Keyword, as_text, spelled
from sweeper.report import comparison as show
from sweeper.report.compared import after_comparison
from sweeper.report.comparison import panels, write_several
from sweeper.report.figures import write_picture
from sweeper.report.index import write_index
from sweeper.report.next import NextCommand
from sweeper.report.output import DONE, Output
from sweeper.study.folder import StudyFolder
from sweeper.sweep.compared import compared, comparison_folder


def report_several(names: Sequence[str], root: Path, picture: Path | None, output: Output) -> int:
    """Write the page of several studies; of `picture` and NAME-dark.svg, their curves alone."""
    if picture is not None and picture.suffix != ".svg":
        raise ConfigError(Keyword("picture"), str(picture), "a file whose name ends in .svg")
    if picture is not None and not picture.parent.is_dir():
        allowed = f"there is no folder {picture.parent}: make it first"
        raise ConfigError(Keyword("picture"), str(picture), allowed)
    ranked = compared(names, root, anyway=False)
    folder = comparison_folder(names, root)
    paths = {name: StudyFolder(root / name).report for name in names}
    pages = {n: os.path.relpath(path, folder) for n, path in paths.items() if path.is_file()}
    faster = []
    if ranked.comparison is not None:
        ladders = {entry.ladder.name: entry.ladder for entry in ranked.entries}
        faster = speed_ups([ladders[rank.name] for rank in ranked.comparison.by_transferred])
    page = write_several(ranked, pages, folder, faster)
    places = {"report": page, "all studies": write_index(root)}
    if picture is not None:
        places["picture"], places["picture for dark pages"] = write_picture(panels(ranked), picture)
    answers = ", ".join(f"{name} {answer}" for name, answer in ranked.verdicts.items())
    sentence = f"The transfer over width: {answers}."
    if ranked.comparison is None:
        output.notes([spelled(as_text(note), SHELL) for note in ranked.notes])
        why = "to rank them all the same"
        next_commands = [NextCommand.of("compare", *names, "--anyway", root=root, why=why)]
    else:
        sentence += f" {show.findings(ranked.comparison)[0]}"
        next_commands = after_comparison(ranked.comparison, ranked.entries)
    document = {
        "studies": list(names),
        "report": str(page),
        "verdicts": ranked.verdicts,
        "ranked": ranked.comparison is not None,
        "notes": [spelled(as_text(note), SHELL) for note in ranked.notes],
        "picture": None if picture is None else str(picture),
    }
    output.end(sentence, places, document, *next_commands)
    return DONE
