"""A check answered: what was measured in tables and figures, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.check.judge import CoordinateCheck
from sweeper.config.settings import Settings
from sweeper.config.studies import Invocation
from sweeper.records import to_json
from sweeper.registry import TARGET
from sweeper.report import checks as show
from sweeper.report.drawing import save
from sweeper.report.next import Next, again, next_of
from sweeper.report.sections import Item, Shown
from sweeper.report.sentences import check_sentence, unfinished_notes
from sweeper.report.study_page import write_report
from sweeper.stats.ladder import Size
from sweeper.study.folder import StudyFolder, configs
from sweeper.study.searched import config_tree
from sweeper.verbs.check import CheckAnswer
from sweeper.verbs.requests import CheckRequest, ExplainRequest, SearchRequest


def presented(answer: CheckAnswer) -> Shown:
    """What was measured; figures, and the page of a study that is checked, are written."""
    settings, folder, checks = answer.settings, answer.folder, answer.checks
    items, pictures = list[Item](), dict[str, Path]()
    document: dict[str, Any] = {}
    if answer.operands:
        document["scales"] = [to_json(operand) for operand in answer.operands]
        items.append(show.scale_table(answer.operands))
    if answer.kernels:
        document["kernels"] = [to_json(row) for row in answer.kernels]
        items += show.kernel_tables(answer.kernels)
    if checks:
        document["check"] = to_json(answer.record)
        items += show.coordinates(checks, settings.check)
        for axis in checks:
            picture, _ = save(show.coordinate_figure(axis), folder / f"coordinates-{axis.axis}")
            pictures.setdefault("curves", picture)
    places = dict[str, Path]()
    measured = answer.operands or answer.kernels or checks
    if measured and StudyFolder(settings.folder).config.is_file():
        places["report"] = write_report(settings.folder)
    subjects = ["the operands of every matrix product"] * bool(answer.operands)
    subjects += ["the kernels of every block"] * bool(answer.kernels)
    sentences = " ".join(check_sentence(axis, settings.check) for axis in checks)
    return Shown(
        items=items,
        notes=[*answer.notes, *unfinished_notes(answer.unfinished)],
        answer=sentences or f"Measured {' and '.join(subjects)}.",
        places=places | {name: folder / f"{name}.json" for name in document} | pictures,
        document=document,
        next=[_after_check(settings, checks, answer.invocation)],
        folder=settings.folder if measured else None,
    )


def _after_check(
    settings: Settings, checks: Sequence[CoordinateCheck], invocation: Invocation
) -> Next | None:
    failing = {axis.axis: max(axis.sizes) for axis in checks if axis.answer == "fail"}
    if failing:
        request = _explains(settings.base, failing)
        return again(invocation, request, settings, why="to see what is prescribed there")
    for doubtful in (axis for axis in checks if axis.answer == "cannot say"):
        settled = doubtful.settled_by(settings.check)
        changes = [settled] if settled else []
        why = "to settle it"
        return again(invocation, CheckRequest(), settings, *changes, why=why)
    if not checks:
        return again(invocation, CheckRequest(), settings, why="to check the coordinates")
    if invocation.study is not None:
        return next_of(settings.folder)
    # Of a model that a script of one's own trains already, not a search of another engine.
    if settings.raw["runner"].get("command") is None and (folder := _study_of_command(settings)):
        return next_of(folder)
    # The learning rate alone, where nobody asked for a search of hours.
    asked = ("search=", "experiment=", "size=")
    changes = [] if any(word.startswith(asked) for word in invocation.overrides) else ["search=lr"]
    return again(invocation, SearchRequest(), settings, *changes, why="to search the base size")


def _study_of_command(settings: Settings) -> Path | None:
    folders = []
    for path in configs(settings.root):
        try:
            kept = config_tree(path.parent)
            same = kept["model"][TARGET] == settings.plugin_spec("model").name
            if same and kept["runner"].get("command"):
                folders.append((path.stat().st_mtime, path.parent))
        except (OSError, KeyError, TypeError, AttributeError):
            continue
    return max(folders)[1] if folders else None


def _explains(base: Size, failing: Mapping[str, int]) -> ExplainRequest:
    """What explains the largest failing size; of a failure at the base or below, 4 times it."""
    sizes, asked = asdict(base), failing.keys() & {"width", "depth"}
    for axis in asked or ("width",):
        largest = failing.get(axis, 0)
        sizes[axis] = largest if largest > sizes[axis] else 4 * sizes[axis]
    depth = sizes["depth"] if "depth" in asked else None
    return ExplainRequest(to_width=sizes["width"], to_depth=depth)
