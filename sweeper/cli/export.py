"""`sweeper export`: a study's plan in the words of another trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.cli.next import NextCommand
from sweeper.cli.output import DONE, NOT_VALIDATED, Output
from sweeper.cli.studies import find_study, split_root
from sweeper.config.compose import override_value, parse_overrides
from sweeper.errors import BadInput, ConfigError
from sweeper.export.compare import NAMES, Lack, header, is_export, lacking
from sweeper.export.exporter import build_exporter
from sweeper.files import write_atomically
from sweeper.plan.plan import TransferPlan


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What `sweeper export` is asked for; `plan` is a file in place of a study's."""

    to: str
    study: str | None = None
    plan: Path | None = None
    width: int | None = None
    depth: int | None = None
    out: Path | None = None
    accept: tuple[str, ...] = ()


def export(request: ExportRequest, words: Sequence[str], output: Output) -> int:
    """Write the files; 3, and nothing written, where something cannot be said and was not accepted.

    ConfigError and BadInput name what is unknown, and what to run first where there is no plan.
    """
    root, options = split_root(words)
    exporter = build_exporter(request.to, _options(options))
    for name in request.accept:
        if name not in NAMES:
            raise ConfigError("--accept", name, f"one of {', '.join(NAMES)}")
    sizes = (request.study, request.width, request.depth)
    if request.plan and any(value is not None for value in sizes):
        raise BadInput("--plan is the plan: --study, --to-width and --to-depth choose another")
    path = request.plan or _plan_of_study(request, root)
    plan = TransferPlan.load(path)
    _check(plan, path)
    lacks = lacking(plan, exporter)
    missing = [lack for lack in lacks if lack.name not in request.accept]
    if missing:
        _refuse(exporter.trainer, missing, output)
        output.document(_document(request, plan, lacks, []))
        return NOT_VALIDATED
    files = exporter.files(plan, header(plan, exporter, lacks, request.accept))
    folder = request.out or path.parent / "export" / request.to
    written = _write(folder, files)
    for lack in lacks:
        output.say(f"Accepted, though {exporter.trainer} cannot express it: {lack}")
    accepted = f"; what it cannot express was accepted ({len(lacks)})" if lacks else ""
    found = f"Exported the plan for {plan.target} to {exporter.trainer}{accepted}."
    places = {"export": ", ".join(map(str, written))}
    output.end(found, places, _document(request, plan, lacks, written))
    return DONE


def _options(words: Sequence[str]) -> dict[str, Any]:
    """The exporter's options, given as key=value."""
    found = {}
    for override in parse_overrides(words):
        key = str(override.key_or_group)
        found[key] = override_value(key, override.value())
    return found


def _plan_of_study(request: ExportRequest, root: Path) -> Path:
    """The plan of the study for the asked size; BadInput where there is none, or more than one."""
    study = find_study(request.study, root)
    plans = {_size(path): path for path in (root / study / "transfer").glob("w*-d*/plan.json")}
    asked = (request.width, request.depth)
    fitting = {
        size: path
        for size, path in sorted(plans.items())
        if all(value in (None, size[i]) for i, value in enumerate(asked))
    }
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    has = "; ".join(map(_described, sorted(plans)))
    if len(fitting) > 1:
        alike = len({size[:2] for size in fitting}) == 1
        options = " or ".join(f"--plan {path}" for path in fitting.values())
        how = options if alike else "--to-width and --to-depth"
        raise BadInput(f"the study {study!r} has several plans ({has}): choose with {how}")
    sizes_asked = ["--to-width", str(request.width or "N")]
    sizes_asked += ["--to-depth", str(request.depth)] if request.depth else []
    first = NextCommand.of("transfer", *sizes_asked, study=study, root=root, why="to plan it")
    beside = f"; it has some for {has}" if plans else ""
    raise BadInput(f"the study {study!r} has no such plan yet{beside}: run `{first}` first")


def _size(path: Path) -> tuple[int, ...]:
    """Width and depth of a plan's folder, and its batch and steps where its name has them."""
    match = re.fullmatch(r"w(\d+)-d(\d+)(?:-b(\d+)-s(\d+))?", path.parent.name)
    return tuple(int(number) for number in match.groups() if number) if match else (0, 0)


def _described(size: tuple[int, ...]) -> str:
    model = f"width {size[0]}, depth {size[1]}"
    return model if len(size) == 2 else f"{model}, {size[3]} steps of {size[2]}"


def _check(plan: TransferPlan, path: Path) -> None:
    """BadInput for a plan without parameters, or without the factors of its operations."""
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


def _refuse(trainer: str, missing: Sequence[Lack], output: Output) -> None:
    """Say what cannot be expressed, and how to go on; nothing was written."""
    output.tell(f"{trainer} cannot express this plan, and nothing was written:")
    for lack in missing:
        output.tell(f"- {lack}")
    accepts = " ".join(f"--accept {lack.name}" for lack in missing)
    output.tell(
        "Where you do it yourself, or mean to train without, say so by adding "
        f"{accepts}: the header of the export lists it"
    )


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """BadInput where the folder takes no files; nothing is written then."""
    taken = next((folder / name for name in files if (folder / name).is_dir()), None)
    if taken is not None:
        raise BadInput(f"{taken} is a folder: choose another place by --out")
    if (foreign := _foreign(folder, files)) is not None:
        raise BadInput(f"{foreign} is no export and is kept: choose another place by --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomically(folder / name, text)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{folder} cannot be written to: {reason}; choose --out") from error
    return [folder / name for name in files]


def _foreign(folder: Path, files: Mapping[str, str]) -> Path | None:
    """A file that an export would replace and that no export wrote."""
    there = [path for name in files if (path := folder / name).is_file()]
    try:
        # Not all formats have comments: one file that says so vouches for those beside it.
        ours = any(is_export(path.read_text(errors="replace")) for path in there)
    except OSError:
        ours = False
    return None if ours or not there else there[0]


def _document(
    request: ExportRequest, plan: TransferPlan, lacks: Sequence[Lack], written: Sequence[Path]
) -> dict[str, Any]:
    return {
        "to": request.to,
        "study": plan.source.get("study"),
        "files": [str(path) for path in written],
        "cannot_express": [
            {
                "name": lack.name,
                "accepted": lack.name in request.accept,
                "differences": [vars(one) for one in lack.differences],
            }
            for lack in lacks
        ],
    }
