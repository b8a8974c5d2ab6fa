"""A study's plan as files of another trainer, with what they leave to whoever trains with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.config.command_line import DEFAULT_ROOT, of_study
from sweeper.config.compose import override_value, parse_overrides
from sweeper.config.studies import split_root
from sweeper.errors import BadInput, Call, ConfigError, Keyword
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
    chosen = {str(option.key_or_group): option.value() for option in parse_overrides(options)}
    exporter = build_exporter(
        request.to, {key: override_value(key, value) for key, value in chosen.items()}
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
    if request.plan and study is not None:
        raise BadInput(
            Keyword("plan", ...), " is the plan: ", Keyword("study", ...), " chooses another"
        )
    path = request.plan or _plan_of_study(study, root)
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


def _plan_of_study(name: str | None, root: Path) -> Path:
    study = find_study(name, root)
    plans = sorted(StudyFolder(root / study).plans())
    if len(plans) == 1:
        return plans[0]
    if plans:
        choices = [part for path in plans for part in (" or ", Keyword("plan", path))]
        raise BadInput(f"the study {study!r} has several plans: choose ", *choices[1:])
    place = [] if str(root) == DEFAULT_ROOT else [Keyword("root", str(root))]
    first = Call("transfer", Keyword("study", study), Keyword("to_width", "N"), *place)
    raise BadInput(f"the study {study!r} has no plan yet: run ", first, " first")
