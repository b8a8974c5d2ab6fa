"""What to ask next: a request as a value, and the one that a study as it is asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.check.judge import MEASURED, CheckRecord
from sweeper.config.command_line import changed, key_of, of_study, place_of, split_user_command
from sweeper.decide.validation import (
    Validation,
    newest_validation,
    settling_budget,
    settling_ladder,
    without_settled,
)
from sweeper.errors import SHELL, BadInput, Call, Keyword, Text
from sweeper.files import parse_yaml
from sweeper.launch.code import MAIN
from sweeper.plan.plan import TransferPlan
from sweeper.search.optuna.url import redact_word
from sweeper.study.folder import StudyFolder, TargetFolder, read_document
from sweeper.study.lock import live_holder
from sweeper.study.searched import config_text, config_tree, read_searched, takes
from sweeper.study.setup import read_setup
from sweeper.study.study import latest_study
from sweeper.sweep.progress import stopped_at
from sweeper.verbs.listed import REQUESTS, read_line
from sweeper.verbs.requests import (
    CheckRequest,
    ExportRequest,
    ReportRequest,
    Request,
    SearchRequest,
    StatusRequest,
    TransferRequest,
)

if TYPE_CHECKING:
    from sweeper.config.settings import Settings
    from sweeper.config.studies import Invocation

WIDENED = 4
"""A target's width where none has been named: so many times the base's."""
NEEDS_MODEL = frozenset({"search", "transfer", "check"})


@dataclass(frozen=True)
class Next:
    """What to ask next, and why, as in "to validate the transfer".

    `command` is what stands behind the `--` of a search. A call without a verb is the user's
    command alone, as a target's own run.
    """

    request: Any
    """A Request, or a call that some room below has made."""
    why: str
    command: tuple[str, ...] = ()

    @classmethod
    def recorded(cls, line: object, why: str, kind: type[Request] = Request) -> Next | None:
        """What a record's `line` asks for; None where nothing reads it, or it is another `kind`."""
        try:
            request, command = read_line(line if isinstance(line, str) else "")
        except (ValueError, BadInput):
            return None
        return cls(request, why, command) if isinstance(request, kind) else None

    @property
    def call(self) -> Call:
        """What either mouth spells; of a storage's URL it has no password."""
        call = self.request if isinstance(self.request, Call) else self.request.call
        parts = (redact_word(each) if isinstance(each, str) else each for each in call.arguments)
        return Call(call.verb, *parts, command=self.command or call.command)

    def __str__(self) -> str:
        return SHELL.call(self.call)

    @property
    def document(self) -> dict[str, str]:
        """What `--json` has of it."""
        return {"command": str(self), "why": self.why}

    def changed(self, *overrides: str, why: str, **keywords: Any) -> Next:
        """The same with other overrides and keywords, each in place of an earlier one."""
        settings = changed(self.request.overrides, overrides)
        return replace(self, request=replace(self.request, overrides=settings, **keywords), why=why)

    def at(self, folder: Path) -> Next:
        """The same of the study where it lies now: it may have been copied since, or moved."""
        request = self.request
        if not isinstance(request, SearchRequest | TransferRequest | CheckRequest):
            return self
        name, settings = of_study(request.overrides, request.study, None)
        roots = [word for word in settings if key_of(word) == "root"]
        root = place_of(roots, None, request.root)[1]
        if name is None and not isinstance(request, SearchRequest):
            name = latest_study(root)
        if (root / (name or folder.name)).resolve() == folder.resolve():
            return self
        others = tuple(word for word in settings if word not in roots)
        place: dict[str, Any] = {"study": folder.name, "root": folder.parent}
        return replace(self, request=replace(request, overrides=others, **place))


def ladder_words(overrides: Sequence[str]) -> list[str]:
    """Settings that say which ladders are trained, and by which law they are planned."""
    return [word for word in overrides if key_of(word).partition(".")[0] in ("transfer", "law")]


def again(
    invocation: Invocation, request: Request, settings: Settings, *changes: str, why: str
) -> Next:
    """The `request` for the same configuration with `changes`, a search's command behind `--`."""
    overrides = list(changed(invocation.overrides, changes, without=["root"]))
    command = list[str]()
    if isinstance(request, SearchRequest):
        overrides, command = split_user_command(overrides, settings.raw["runner"])
    asked: dict[str, Any] = {
        "overrides": tuple(overrides),
        "study": invocation.study,
        "root": settings.root,
        "config_dir": invocation.config_dir,
    }
    return Next(replace(request, **asked), why, tuple(command))


def the_same(command: Next) -> Text:
    """What a dry run says in place of a `command` that was typed a moment ago."""
    return (f" Next, {command.why}: the same without ", Keyword("dry_run"), ".")


def search_on(folder: Path, *changes: str, why: str, **keywords: Any) -> Next:
    """The search that the study in `folder` was made by, some of its settings changed."""
    request = SearchRequest(study=folder.name, root=folder.parent, overrides=changes, **keywords)
    return Next(request, why)


def within(folder: Path, command: Next) -> Next:
    """The same of the study in `folder`, without settings of a transfer that it keeps."""
    command = command.at(folder)
    request, kept = command.request, config_tree(folder).get("transfer")
    if not isinstance(request, TransferRequest) or not isinstance(kept, dict):
        return command

    def is_kept(word: str) -> bool:
        key, _, value = word.partition("=")
        name = key.removeprefix("transfer.")
        with suppress(ValueError):
            return name != key and name in kept and parse_yaml(value) == kept[name]
        return False

    new = tuple(word for word in request.overrides if not is_kept(word))
    return replace(command, request=replace(request, overrides=new))


def next_of(folder: Path, notes: list[str] | None = None, *, shell: bool = True) -> Next | None:
    """The command that goes on with the study in `folder`; None where nothing tells.

    `notes` gets what is damaged; without, the verb names what it shows. In a `shell` there is none
    for the model of a notebook's cell, and in a notebook none of a verb that no call stands for.
    """
    command = _following(folder, [] if notes is None else notes)
    command = command and within(folder, command)
    closed = NEEDS_MODEL if shell else NEEDS_MODEL - {"search", "transfer"}
    of_cell = f"_target_: {MAIN}." in config_text(folder)
    return None if command and command.call.verb in closed and of_cell else command


def _following(folder: Path, notes: list[str]) -> Next | None:
    root, name = folder.parent, folder.name
    # Whatever is recorded so far, a driver is about to change it.
    if live_holder(folder) is not None:
        return Next(StatusRequest(study=name, root=root, watch=True), "to see how far it is")
    stopped = stopped_at(folder, notes)
    if stopped is not None:
        why = "to go on with what was stopped"
        if command := _recorded(folder, stopped.command, why):
            return command
    searched = read_searched(folder, notes)
    if searched is None:
        return None
    if not searched.finished:
        return _recorded(folder, searched.command, "to go on with the search")
    if not math.isfinite(searched.conclusion.objective):
        return None
    for path in StudyFolder(folder).plans():
        plan = read_document(path, TransferPlan, notes)
        if plan is not None:
            line, why = plan.source.get("command"), "to plan it again"
            command = Next.recorded(line, why, TransferRequest)
            validation = read_document(TargetFolder(path.parent).validation, Validation, notes)
            return after_plan(folder, path.parent, plan, command, validation)
    return first_transfer(folder, searched.base.width if searched.base else 1)


def reproducing(folder: Path, line: str) -> str:
    """The recorded `line`, of the study in `folder` where it lies now."""
    command = Next.recorded(line, "")
    here = command and command.at(folder)
    return line if here is command else str(here)


def stopped_by(line: str) -> str:
    """The search that goes on where `line` was stopped: short where the study has its settings."""
    request = read_line(line)[0]
    name, words = of_study(request.overrides, request.study, None)
    root = place_of([w for w in words if key_of(w) == "root"], None, request.root)[1]
    stopped = stopped_at(folder := root / (name or latest_study(root) or ""), [])
    return str(_recorded(folder, line, "")) if stopped and stopped.command == line else line


def _recorded(folder: Path, line: object, why: str) -> Next | None:
    command = Next.recorded(line, why)
    if command and isinstance(command.request, REQUESTS.get("compare", ())):
        return _compared(folder, command)
    if command is None or not isinstance(command.request, SearchRequest) or not config_tree(folder):
        return command
    request = command.request
    return search_on(folder, why=why, config_dir=request.config_dir, detach=request.detach)


def _compared(folder: Path, command: Next) -> Next | None:
    """The comparison, if it is of the study in `folder` and of others that lie beside it now."""
    names = tuple(word for word in command.request.names if key_of(word) != "root")
    studies = [
        name.removeprefix("study=")
        for name in names
        if name.startswith("study=") or "=" not in name
    ]
    if folder.name not in studies or not all((folder.parent / name).is_dir() for name in studies):
        return None
    return replace(command, request=replace(command.request, names=names, root=folder.parent))


def validated_by(folder: Path, axis: str = "") -> Next | None:
    """The command of the study's newest verdict on eta, over `axis` where one is named."""
    newest = newest_validation(folder, lambda each: not axis or each.over(axis) is not None)
    line = newest.command if newest else None
    command = Next.recorded(line, "to validate the transfer", TransferRequest)
    return command and command.at(folder)


def first_transfer(folder: Path, width: int, config_dir: Path | None = None) -> Next:
    """The validated transfer that follows a search at `width`; first a check that failed."""
    target = WIDENED * width
    request = TransferRequest(
        to_width=target,
        validate=True,
        study=folder.name,
        root=folder.parent,
        config_dir=config_dir,
    )
    return failed_check(folder) or Next(request, "to validate the transfer")


def failed_check(folder: Path) -> Next | None:
    """The command that shows where the newest coordinate check of the study's setup failed."""
    record = _newest_check(folder)
    if record is None or all(check.answer != "fail" for check in record.axes):
        return None
    return Next.recorded(record.command, "to see where the coordinate check fails")


def _newest_check(folder: Path) -> CheckRecord | None:
    setup = read_setup(folder)
    for path in StudyFolder(folder).checks():
        record = read_document(path, CheckRecord, [])
        if record and setup and (record.spec, record.measured) == (setup.digest, MEASURED):
            return record
    return None


def after_plan(
    folder: Path,
    place: Path,
    plan: TransferPlan,
    command: Next | None,
    validation: Validation | None,
) -> Next | None:
    """The command after the `command` that left a `plan`, and maybe a `validation`, in `place`.

    A check that failed, validation, the cause of a failure, what would settle a doubt, the trend,
    or files for another trainer.
    """
    verdicts = validation.axes if validation else ()
    if validation is None or not verdicts:
        if failed := failed_check(folder):
            return failed
        # The command that left the plan asked for the verdict already, and was stopped: the same
        # again.
        why = "to validate the transfer"
        if command is None or command.request.validate:
            return command and replace(command, why=why)
        return command.changed(why=why, validate=True)
    if command is not None and not command.request.validate:
        # A transfer that only plans says nothing of the ladders that the verdict is on.
        trained = Next.recorded(validation.command, command.why, TransferRequest)
        keys = ("to_width", "to_depth", "to_tokens", "to_batch")
        own = {key: getattr(command.request, key) for key in keys}
        command = (trained or command).changed(why=command.why, validate=True, **own)
    failing = [verdict.axis for verdict in verdicts if verdict.answer == "fails"]
    if failed := failed_check(folder):
        return failed
    # Of a command that scales by itself no check could say more.
    if failing and plan.parameters and _newest_check(folder) is None:
        why = f"to see whether the rules are why it fails over {' and '.join(failing)}"
        return Next(CheckRequest(study=folder.name, root=folder.parent), why)
    if settling := _settling(folder, validation, command):
        return settling
    targets = [verdict.target for verdict in verdicts if verdict.target]
    settle = [override for target in targets for override in target.settle]
    if command is not None and settle:
        return command.changed(*settle, why="to settle it")
    # Something is open, and no known command settles it: better none than a wrong one.
    if {*(v.answer for v in verdicts), *(t.answer for t in targets)} != {"holds"}:
        return None
    if not plan.parameters:
        words = target_words(plan, place)
        return Next(Call("", command=words), "to train the target") if words else None
    request = ExportRequest(to="pytorch", study=folder.name, root=folder.parent)
    if len([*StudyFolder(folder).plans()]) > 1:
        request = ExportRequest(to="pytorch", plan=TargetFolder(place).plan)
    return Next(request, "to use the plan in a trainer")


def target_words(plan: TransferPlan, place: Path) -> list[str]:
    """The words of what trains the target of the plan in `place`, where a command does.

    In a study that was copied the plan names the folder that it was made in.
    """
    made = rf"(?<![^\s=:,'\"])/[^\s=:,'\"]*/{place.parent.name}/{place.name}(?![^/\s=:,'\"])"
    words = map(str, plan.source.get("target_command") or ())
    return [re.sub(made, lambda _: str(place.absolute()), word) for word in words]


def _settling(folder: Path, validation: Validation, command: Next | None) -> Next | None:
    if command and command.request.settle and (budget := settling_budget(validation)):
        return command.changed(why="to settle it with as many runs", budget=budget)
    asked, why = settling_ladder(validation.axes), "to settle it"
    steps = asked.pop("train.steps", None)
    # A study's steps are part of its trials: what is known of shorter ones is set aside.
    # A command without {steps} trains as long as it does, whatever the study is told.
    if steps and takes(config_text(folder), "steps"):
        return search_on(folder, f"train.steps={_written(steps)}", why=why, new_setup=True)
    if command is None or not asked:
        return None
    changes = [f"{key}={_written(value)}" for key, value in asked.items()]
    return command.changed(*changes, *without_settled(validation.axes), why=why)


def _written(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:g}"


def report_of(folder: Path) -> str:
    """The command that writes the page of the study in `folder`."""
    return SHELL.call(ReportRequest(name=(folder.name,), root=folder.parent).call)
