"""A study's plan as files of another trainer, with what they leave to whoever trains with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.config.command_line import DEFAULT_ROOT, of_study
from sweeper.config.compose import override_value, parse_overrides
from sweeper.config.studies import split_root
from sweeper.errors import BadInput, Call, ConfigError, Keyword, Text
from sweeper.export.exporter import Exporter, build_exporter, for_trainer, own_lines
from sweeper.export.lacks import NAMES, Lack, header, is_export, lacking
from sweeper.files import make_folder, write_atomically
from sweeper.plan.plan import TransferPlan
from sweeper.schedule import OWN
from sweeper.study.folder import StudyFolder
from sweeper.study.study import find_study
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import Outcome, VerbAnswer
from sweeper.verbs.requests import ExportRequest

OUT = Keyword("out", ...)


@dataclass(frozen=True, kw_only=True)
class ExportAnswer(VerbAnswer):
    """What was written, and what the trainer cannot say of the plan.

    `missing` are the lacks that nobody accepted: where they are refused, no file is written.
    `own_factors` are lines on what a model multiplies by itself, `own_schedule` tells of a script
    that keeps its own.
    """

    to: str
    trainer: str
    plan: TransferPlan
    lacks: tuple[Lack, ...]
    accepted: tuple[Lack, ...]
    missing: tuple[Lack, ...]
    files: tuple[Path, ...] = ()
    own_factors: tuple[str, ...] = ()
    own_schedule: bool = False

    @property
    def refused(self) -> bool:
        """Whether nothing was written, since something is missing."""
        return self.outcome is Outcome.NOT_VALIDATED


def export(request: ExportRequest, watcher: Watcher) -> ExportAnswer:
    """Write the files of a plan.

    With `strict` nothing is written where something is missing that was not accepted. ConfigError
    and BadInput name what is unknown, and what to ask first where there is no plan.
    """
    asked_root = None if request.root is None else str(request.root)
    study, arguments = of_study(request.options, request.study, asked_root)
    root, options = split_root(arguments)
    known = {str(option.key_or_group): option.value() for option in parse_overrides(options)}
    exporter = build_exporter(
        request.to, {key: override_value(key, value) for key, value in known.items()}
    )
    for name in request.accept:
        if name not in NAMES:
            raise ConfigError(Keyword("accept"), name, f"one of {', '.join(NAMES)}")
    path, plan = _asked_plan(request, study, root)
    # Lacks are of what the trainer has to do, which is not all that the study's model does.
    plan = for_trainer(plan, exporter)
    lacks = lacking(plan, exporter)
    accepted = tuple(lack for lack in lacks if lack.name in request.accept)
    missing = tuple(lack for lack in lacks if lack.name not in request.accept)
    refused = bool(missing) and request.strict
    written = () if refused else _write(request, exporter, plan, lacks, path)
    return ExportAnswer(
        outcome=Outcome.NOT_VALIDATED if refused else Outcome.DONE,
        to=str(request.to),
        trainer=exporter.trainer,
        plan=plan,
        lacks=lacks,
        accepted=accepted,
        missing=missing,
        files=written,
        own_factors=() if exporter.has_own_factors(plan) else tuple(own_lines(plan)),
        own_schedule=plan.source.get("schedule") == OWN,
    )


def _asked_plan(request: ExportRequest, study: str | None, root: Path) -> tuple[Path, TransferPlan]:
    """The plan and its file; BadInput for one that cannot be exported."""
    sizes = (study, request.to_width, request.to_depth)
    if request.plan and any(value is not None for value in sizes):
        raise BadInput(
            *(Keyword("plan", ...), " is the plan: ", Keyword("study", ...), ", "),
            *(Keyword("to_width", ...), " and ", Keyword("to_depth", ...), " choose another"),
        )
    path = request.plan or _plan_of_study(request, study, root)
    plan = TransferPlan.load(path)
    if not plan.parameters:
        raise BadInput(
            f"{path} has no parameters: under parameterization={plan.parameterization} the command "
            "scales by itself, and its command line for the target is what ",
            Call("transfer"),
            " shows",
        )
    if all(parameter.frozen for parameter in plan.parameters):
        raise BadInput(f"{path} has no parameter that is trained: there is nothing to export")
    if plan.factors is None:
        raise BadInput(
            f"{path} records no factors of attention and residual branches: run ",
            Call("transfer"),
            " again with the same arguments",
        )
    return path, plan


def _write(
    request: ExportRequest,
    exporter: Exporter,
    plan: TransferPlan,
    lacks: Sequence[Lack],
    path: Path,
) -> tuple[Path, ...]:
    """Write all files of the plan at `path`; BadInput, and none written, where one cannot be."""
    # All texts before the first is written: what fails here leaves nothing behind.
    files = exporter.files(plan, header(plan, exporter, lacks, request.accept))
    folder = request.out or path.parent / "export" / str(request.to)
    _check_place(files, folder)
    try:
        make_folder(folder)
        for name, text in files.items():
            write_atomically(folder / name, text)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{folder} cannot be written to: {reason}; choose ", OUT) from error
    return tuple(folder / name for name in files)


def _check_place(files: Mapping[str, str], folder: Path) -> None:
    """BadInput where something else than an export lies in the way."""
    for name in files:
        if (folder / name).is_dir():
            raise BadInput(f"{folder / name} is a folder: choose another place by ", OUT)
    there = [path for name in files if (path := folder / name).is_file()]
    try:
        # Not all formats have comments: one file that says so vouches for those beside it.
        ours = any(is_export(path.read_text(errors="replace")) for path in there)
    except OSError:
        ours = False
    if there and not ours:
        raise BadInput(f"{there[0]} is no export and is kept: choose another place by ", OUT)


def _plan_of_study(request: ExportRequest, name: str | None, root: Path) -> Path:
    """The plan of the study for the asked size; BadInput where there is none, or more than one."""
    study = find_study(name, root)
    # By width and depth, and batch and steps where the name of a target's folder has them.
    plans: dict[tuple[int, ...], Path] = {}
    described = {}
    for path in sorted(StudyFolder(root / study).plans()):
        match = re.fullmatch(r"w(\d+)-d(\d+)(?:-b(\d+)-s(\d+))?", path.parent.name)
        size = tuple(int(part) for part in match.groups() if part) if match else (0, 0)
        trained = f", {size[3]} steps of {size[2]}" if len(size) > 2 else ""
        plans[size], described[size] = path, f"width {size[0]}, depth {size[1]}{trained}"
    asked = (request.to_width, request.to_depth)
    fitting = {
        size: path
        for size, path in sorted(plans.items())
        if all(value in (None, size[i]) for i, value in enumerate(asked))
    }
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    has = "; ".join(described[size] for size in sorted(plans))
    if len(fitting) > 1:
        # Plans of one width and depth differ in batch or steps, for which there is no keyword.
        alike = len({size[:2] for size in fitting}) == 1
        how: Text = (Keyword("to_width", ...), " and ", Keyword("to_depth", ...))
        if alike:
            named = [part for path in fitting.values() for part in (" or ", Keyword("plan", path))]
            how = tuple(named[1:])
        raise BadInput(f"the study {study!r} has several plans ({has}): choose with ", *how)
    width = Keyword("to_width", request.to_width or "N")
    depth = [Keyword("to_depth", request.to_depth)] if request.to_depth else []
    beside = f"; it has some for {has}" if plans else ""
    place = [] if str(root) == DEFAULT_ROOT else [Keyword("root", str(root))]
    first = Call("transfer", Keyword("study", study), width, *depth, *place)
    raise BadInput(f"the study {study!r} has no such plan yet{beside}: run ", first, " first")
