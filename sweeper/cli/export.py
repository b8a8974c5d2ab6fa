"""`sweeper export`: a study's plan in the words of another trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.config.compose import override_value, parse_overrides
from sweeper.config.studies import split_root
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.export.compare import NAMES, Lack, header, is_export, lacking
from sweeper.export.exporter import Exporter, build_exporter, for_trainer, own_lines
from sweeper.files import make_folder, write_atomically
from sweeper.plan.plan import TransferPlan
from sweeper.report.answer import Sentence
from sweeper.report.next import NextCommand
from sweeper.report.output import DONE, NOT_VALIDATED, Output
from sweeper.schedule import OWN
from sweeper.study.study import find_study


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What `sweeper export` is asked for; `plan` is a file in place of a study's."""

    to: str | None
    study: str | None = None
    plan: Path | None = None
    width: int | None = None
    depth: int | None = None
    out: Path | None = None
    accept: tuple[str, ...] = ()
    strict: bool = False


def export(request: ExportRequest, arguments: Sequence[str], output: Output) -> int:
    """Write the files, and say what they leave to whoever trains with them.

    With `strict` that is 3, and nothing written, unless it was accepted. `arguments` are the root
    and the exporter's options. ConfigError and BadInput name what is unknown, and what to run first
    where there is no plan.
    """
    root, options = split_root(arguments)
    known = {str(option.key_or_group): option.value() for option in parse_overrides(options)}
    exporter = build_exporter(
        request.to, {key: override_value(key, value) for key, value in known.items()}
    )
    for name in request.accept:
        if name not in NAMES:
            raise ConfigError(Keyword("accept"), name, f"one of {', '.join(NAMES)}")
    path, plan = _asked_plan(request, root)
    plan = for_trainer(plan, exporter)
    lacks = lacking(plan, exporter)
    accepted = [lack for lack in lacks if lack.name in request.accept]
    missing = [lack for lack in lacks if lack.name not in request.accept]
    document = _document(request, plan, lacks)
    if missing and request.strict:
        return _refuse(exporter, missing, document, output)
    # All texts before the first is written: what fails here leaves nothing behind.
    files = exporter.files(plan, header(plan, exporter, lacks, request.accept))
    folder = request.out or path.parent / "export" / str(request.to)
    written = _write(files, folder)
    _show_lacks(exporter, accepted, missing, output)
    if plan.source.get("schedule") == OWN:
        said = (
            "The schedule is left to you: the study's command takes none, so it is the script's own"
        )
        output.show(Sentence(said, detail=True))
    if not exporter.has_own_factors(plan):
        for line in own_lines(plan):
            said = f"The study's model multiplies by itself, and yours must too: {line}"
            output.show(Sentence(said))
    rests = f"; what it cannot express was accepted ({len(accepted)})" if accepted else ""
    if missing:
        names = ", ".join(lack.name for lack in missing)
        rests += f"; the plan is not whole without {names}, which it leaves to you"
    output.end(
        f"Exported the plan for {plan.target} to {exporter.trainer}{rests}.",
        {"export": ", ".join(map(str, written))},
        {**document, "files": written},
    )
    return DONE


def _asked_plan(request: ExportRequest, root: Path) -> tuple[Path, TransferPlan]:
    """The plan and its file; BadInput for one that cannot be exported."""
    sizes = (request.study, request.width, request.depth)
    if request.plan and any(value is not None for value in sizes):
        raise BadInput("--plan is the plan: --study, --to-width and --to-depth choose another")
    path = request.plan or _plan_of_study(request, root)
    plan = TransferPlan.load(path)
    if not plan.parameters:
        raise BadInput(
            f"{path} has no parameters: under parameterization={plan.parameterization} the command "
            "scales by itself, and its command line for the target is what `sweeper transfer` shows"
        )
    if all(parameter.frozen for parameter in plan.parameters):
        raise BadInput(f"{path} has no parameter that is trained: there is nothing to export")
    if plan.factors is None:
        raise BadInput(
            f"{path} is of an older sweeper, which recorded no factors of attention and residual "
            "branches: run `sweeper transfer` again with the same arguments"
        )
    return path, plan


def _document(
    request: ExportRequest, plan: TransferPlan, lacks: Sequence[Lack]
) -> dict[str, object]:
    """What --json says, but for the files."""
    return {
        "to": request.to,
        "study": plan.source.get("study"),
        "files": list[Path](),
        "cannot_express": [
            {
                "name": lack.name,
                "accepted": lack.name in request.accept,
                "differences": lack.differences,
                "edit": lack.edit(),
            }
            for lack in lacks
        ],
    }


def _accepts(missing: Sequence[Lack]) -> str:
    return " ".join(f"--accept {lack.name}" for lack in missing)


def _refuse(
    exporter: Exporter, missing: Sequence[Lack], document: Mapping[str, object], output: Output
) -> int:
    """Say what is `missing`, under --strict: nothing is written."""
    output.tell(f"{exporter.trainer} cannot express this plan, and nothing was written:")
    for lack in missing:
        output.tell(f"- {lack}")
    output.tell(
        "Where you do it yourself, or mean to train without, say so by adding "
        f"{_accepts(missing)}: the header of the export lists it"
    )
    output.document(document)
    return NOT_VALIDATED


def _write(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write texts by their names; BadInput, and nothing written, where something else is there."""
    for name in files:
        if (folder / name).is_dir():
            raise BadInput(f"{folder / name} is a folder: choose another place by --out")
    there = [path for name in files if (path := folder / name).is_file()]
    try:
        # Not all formats have comments: one file that says so vouches for those beside it.
        ours = any(is_export(path.read_text(errors="replace")) for path in there)
    except OSError:
        ours = False
    if there and not ours:
        raise BadInput(f"{there[0]} is no export and is kept: choose another place by --out")
    try:
        make_folder(folder)
        for name, text in files.items():
            write_atomically(folder / name, text)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{folder} cannot be written to: {reason}; choose --out") from error
    return [folder / name for name in files]


def _show_lacks(
    exporter: Exporter, accepted: Sequence[Lack], missing: Sequence[Lack], output: Output
) -> None:
    """Show what the trainer cannot express, and what to do about it."""
    for lack in accepted:
        said = f"Accepted, though {exporter.trainer} cannot express it: {lack}"
        output.show(Sentence(said, detail=True))
    if not missing:
        return
    output.say(f"{exporter.trainer} cannot express all of this plan. It leaves to you:")
    for lack in missing:
        edit = f"\n  The edit: {lack.edit()}" if lack.edit() else ""
        said = f"- {lack}{edit}"
        output.show(Sentence(said))
    output.show(
        Sentence(
            "Once that is done, or where you mean to train without, say so: "
            f"{_accepts(missing)}. The header of the export lists it."
        )
    )


def _plan_of_study(request: ExportRequest, root: Path) -> Path:
    """The plan of the study for the asked size; BadInput where there is none, or more than one."""
    study = find_study(request.study, root)
    # By width and depth, and batch and steps where the name of a target's folder has them.
    plans: dict[tuple[int, ...], Path] = {}
    described = {}
    for path in (root / study / "transfer").glob("w*-d*/plan.json"):
        match = re.fullmatch(r"w(\d+)-d(\d+)(?:-b(\d+)-s(\d+))?", path.parent.name)
        size = tuple(int(part) for part in match.groups() if part) if match else (0, 0)
        trained = f", {size[3]} steps of {size[2]}" if len(size) > 2 else ""
        plans[size], described[size] = path, f"width {size[0]}, depth {size[1]}{trained}"
    asked = (request.width, request.depth)
    fitting = {
        size: path
        for size, path in sorted(plans.items())
        if all(value in (None, size[i]) for i, value in enumerate(asked))
    }
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    has = "; ".join(described[size] for size in sorted(plans))
    if len(fitting) > 1:
        # Plans of one width and depth differ in batch or steps, for which there is no option.
        alike = len({size[:2] for size in fitting}) == 1
        options = " or ".join(f"--plan {path}" for path in fitting.values())
        how = options if alike else "--to-width and --to-depth"
        raise BadInput(f"the study {study!r} has several plans ({has}): choose with {how}")
    sizes_asked = ["--to-width", str(request.width or "N")]
    sizes_asked += ["--to-depth", str(request.depth)] if request.depth else []
    first = NextCommand.of("transfer", *sizes_asked, study=study, root=root, why="to plan it")
    beside = f"; it has some for {has}" if plans else ""
    raise BadInput(f"the study {study!r} has no such plan yet{beside}: run `{first}` first")
