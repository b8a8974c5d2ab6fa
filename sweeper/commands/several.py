"""`sweeper report A B`: several studies on one page, and the picture of their curves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sweeper.commands.compare import compared, comparison_folder, following_command
from sweeper.commands.output import DONE, Output
from sweeper.errors import BadInput
from sweeper.overrides import command_line, repeated
from sweeper.report import comparison as show
from sweeper.report.ladders import write_picture
from sweeper.report.several import Several, write_several


def report_several(names: Sequence[str], root: Path, picture: Path | None, output: Output) -> int:
    """Write the page of several studies; of `picture` and NAME-dark.svg, their curves alone."""
    if picture is not None:
        _check_picture(picture)
    ranked = compared(names, root, anyway=False)
    folder = comparison_folder(names, root)
    pages = {name: root / name / "report.html" for name in names}
    found = Several(
        validations=ranked.validations,
        schemes=ranked.schemes,
        costs=ranked.costs,
        pages={n: os.path.relpath(path, folder) for n, path in pages.items() if path.is_file()},
        comparison=ranked.comparison,
        notes=ranked.notes,
    )
    page = write_several(found, folder)
    places = {"report": page}
    if picture is not None:
        places["picture"], places["picture for dark pages"] = write_picture(found.panels, picture)
    answers = ", ".join(f"{name} {answer}" for name, answer in found.verdicts.items())
    if ranked.comparison is None:
        output.notes(ranked.notes)
        sentence, words = f"The transfer over width: {answers}.", ["--anyway"]
        following = command_line("compare", *names, *repeated(words, root, None))
    else:
        sentence = f"The transfer over width: {answers}. {show.found(ranked.comparison)[0]}"
        following = following_command(ranked.comparison, ranked.entries, root)
    output.end(sentence, places, following)
    output.document(
        {
            "studies": list(names),
            "report": str(page),
            "verdicts": found.verdicts,
            "ranked": ranked.comparison is not None,
            "notes": list(ranked.notes),
            "picture": None if picture is None else str(picture),
            "next": following,
        }
    )
    return DONE


def _check_picture(path: Path) -> None:
    """BadInput for a picture that cannot be written, before anything is."""
    if path.suffix != ".svg":
        raise BadInput(f"--picture {path}: a file whose name ends in .svg")
    if not path.parent.is_dir():
        raise BadInput(f"--picture {path}: there is no folder {path.parent}: make it first")
