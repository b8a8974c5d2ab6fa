"""What to type next: a command as a value, and the command that a study as it is asks for."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.check.judge import MEASURED, CheckRecord
from sweeper.config.command_line import root_flag, split_user_command, without_root
from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation, newest_validation
from sweeper.errors import Call, Keyword, call_words
from sweeper.launch.code import MAIN
from sweeper.plan.plan import TransferPlan
from sweeper.search.optuna.url import redact_word
from sweeper.stats.ladder import DEFAULT_WIDTHS, LADDER_AXES
from sweeper.study.folder import StudyFolder, TargetFolder, read_document
from sweeper.study.lock import live_holder
from sweeper.study.searched import config_text, config_tree, read_searched, takes
from sweeper.study.setup import read_setup
from sweeper.sweep.progress import stopped_at

if TYPE_CHECKING:
    from sweeper.config.settings import Settings
    from sweeper.config.studies import Invocation

WIDENED = 4
"""A target's width where none has been named: so many times the base's."""
DEFAULT_LADDER = {"widths": [*DEFAULT_WIDTHS], "depths": [], "seeds": 2, "step": 0.5, "span": 2.0}
"""What the configuration says of ladders where nobody has said anything."""
NEEDS_MODEL = frozenset({"search", "transfer", "check"})
"""Verbs that build the study's model."""
SMALL = 64
"""Up to this base a ladder above it is cheap; the default's widths are cheap above larger ones."""


@dataclass(frozen=True, kw_only=True)
class NextCommand:
    """A command to type next, and why, as in "to validate the transfer".

    `arguments` are options and overrides in the order typed, `user_command` what stands behind
    `--`. Without a `verb` it is the user's command alone, as for a target's own run.
    """

    verb: str
    arguments: tuple[str, ...] = ()
    user_command: tuple[str, ...] = ()
    why: str = ""

    @classmethod
    def of(
        cls,
        verb: str,
        *arguments: str,
        study: str | None = None,
        root: Path | None = None,
        config_dir: Path | None = None,
        why: str,
    ) -> NextCommand:
        """A command of `verb`, the study first; `root` and `config_dir` where no default is.

        It is printed: of a storage's URL it has no password.
        """
        named = () if study is None else ("--study", study)
        arguments = tuple(map(redact_word, arguments))
        kept = arguments if root is None else (*without_root(arguments), *root_flag(root))
        folder = () if config_dir is None else ("--config-dir", str(config_dir))
        return cls(verb=verb, arguments=(*named, *kept, *folder), why=why)

    @classmethod
    def recorded(cls, line: object, why: str) -> NextCommand | None:
        """A command from the `line` that a record keeps, without --json and --verbose.

        None where a record keeps no command, or one that no shell reads.
        """
        try:
            _, verb, *rest = shlex.split(line if isinstance(line, str) else "")
        except ValueError:
            return None
        at = rest.index("--") if "--" in rest else len(rest)
        arguments = tuple(word for word in rest[:at] if word not in ("--json", "--verbose"))
        return cls(verb=verb, arguments=arguments, user_command=tuple(rest[at + 1 :]), why=why)

    def __str__(self) -> str:
        """The line as a shell takes it, every word quoted where it must be."""
        behind = ["--", *self.user_command] * bool(self.user_command)
        return shlex.join(
            ["sweeper", self.verb, *self.arguments, *behind] if self.verb else self.user_command
        )

    @property
    def of_ladders(self) -> tuple[str, ...]:
        """Its overrides that say which ladders are trained, and by which law they are planned."""
        ours = ("transfer.", "law=", "law.")
        return tuple(word for word in self.arguments if word.lstrip("+").startswith(ours))

    def without(self, *options: str) -> NextCommand:
        """The command without options, nor the numbers that stand beside them."""
        before = ("", *self.arguments)
        kept = (
            word
            for previous, word in zip(before, self.arguments, strict=False)
            if word.partition("=")[0] not in options
            and not (previous in options and word.replace(".", "", 1).isdigit())
        )
        return replace(self, arguments=tuple(kept))

    @property
    def validates(self) -> bool:
        """Whether the command trains ladders."""
        return "--validate" in self.arguments

    def with_arguments(self, *arguments: str, why: str) -> NextCommand:
        """The command with more arguments, each in place of an earlier one of its key."""
        command = self
        for argument in arguments:
            key, is_override, _ = argument.partition("=")
            prefix = f"{key}=" if is_override else argument
            kept = (word for word in command.arguments if not word.startswith(prefix))
            command = replace(command, arguments=(*kept, argument))
        return replace(command, why=why)

    def as_new_study(self, name: str, *overrides: str, why: str) -> NextCommand:
        """A search as another study, some of its overrides changed.

        Its --new-setup goes: a study that has no trials has no setup before this one.
        """
        changed = tuple(f"{override.partition('=')[0].lstrip('+')}=" for override in overrides)
        dropped = ("study=", "study.name=", "--study", "--new-setup")
        # Each word beside the one before it: of `--study NAME` both go.
        kept = [
            word
            for before, word in zip(("", *self.arguments), self.arguments, strict=False)
            if before != "--study"
            and not word.startswith(dropped)
            and not word.lstrip("+").startswith(changed)
        ]
        return replace(self, arguments=(*kept, *overrides, "--study", name), why=why)


def options(**values: object) -> list[str]:
    """Options as they are typed, in their order; what is None or False is left out."""
    given = [Keyword(n, each) for n, each in values.items() if each is not None]
    return call_words(Call("", *(option for option in given if option.value is not False)))[2:]


def of_settings(
    verb: str, settings: Settings, invocation: Invocation, *words: str, why: str
) -> NextCommand:
    """`verb` for the study of the `settings`, whose configs are found as the invocation did."""
    place = {"root": settings.root, "config_dir": invocation.config_dir}
    return NextCommand.of(verb, *words, study=settings.name, **place, why=why)


def again(
    invocation: Invocation, verb: str, settings: Settings, *changes: str, why: str
) -> NextCommand:
    """`verb` for the invocation's configuration with `changes`.

    A search's user command goes back behind `--`, and no password is shown.
    """
    words, user_command = invocation.changed(changes), list[str]()
    if verb == "search":
        words, user_command = split_user_command(words, settings.raw["runner"])
    command = NextCommand.of(
        verb,
        *words,
        study=invocation.study,
        root=settings.root,
        config_dir=invocation.config_dir,
        why=why,
    )
    return replace(command, user_command=tuple(user_command))


# What a study has recorded decides what comes next: the search, the newest plan, its verdict.


def next_of(
    folder: Path, notes: list[str] | None = None, *, shell: bool = True
) -> NextCommand | None:
    """The command that goes on with the study in `folder`; None where nothing tells.

    `notes` gets what is damaged; without, the verb names what it shows. In a `shell` there is none
    for the model of a notebook's cell, and in a notebook none of a verb that no call stands for.
    """
    command = _following(folder, [] if notes is None else notes)
    closed = NEEDS_MODEL if shell else NEEDS_MODEL - {"search", "transfer"}
    return None if command and command.verb in closed and _of_a_cell(folder) else command


def _of_a_cell(folder: Path) -> bool:
    """Whether the study's model was defined in a notebook, where alone it can be found."""
    return f"_target_: {MAIN}." in config_text(folder)


def _following(folder: Path, notes: list[str]) -> NextCommand | None:
    root, name = folder.parent, folder.name
    # Whatever is recorded so far, a driver is about to change it.
    if live_holder(folder) is not None:
        why = "to see how far it is"
        return NextCommand.of("status", "--watch", study=name, root=root, why=why)
    stopped = stopped_at(folder, notes)
    if stopped is not None:
        command = NextCommand.recorded(stopped.command, "to go on with what was stopped")
        if command is not None:
            return command
    searched = read_searched(folder, notes)
    if searched is None:
        return None
    if not searched.finished:
        return NextCommand.recorded(searched.command, "to go on with the search")
    if not math.isfinite(searched.conclusion.objective):
        return None
    for path in StudyFolder(folder).plans():
        plan = read_document(path, TransferPlan, notes)
        if plan is not None:
            command = NextCommand.recorded(plan.source.get("command"), "to plan it again")
            validation = read_document(TargetFolder(path.parent).validation, Validation, notes)
            return after_plan(folder, path.parent, plan, command, validation)
    return first_transfer(folder, searched.base.width if searched.base else 1)


def validated_by(folder: Path, axis: str = "") -> NextCommand | None:
    """The command of the study's newest verdict on eta, over `axis` where one is named."""
    newest = newest_validation(folder, lambda each: not axis or each.over(axis) is not None)
    command = NextCommand.recorded(newest.command, "to validate the transfer") if newest else None
    return command if command and command.verb == "transfer" else None


def first_transfer(folder: Path, width: int, config_dir: Path | None = None) -> NextCommand:
    """What follows a search at `width`: its transfer, validated by 45 to 75 runs at cheap widths.

    What the study's own configuration says of ladders stays. Rules that a coordinate check has
    found wrong are looked at first.
    """
    target = WIDENED * width
    return failed_check(folder) or NextCommand.of(
        "transfer",
        "--to-width",
        str(target),
        "--validate",
        *_cheap_ladders(folder, width, target),
        study=folder.name,
        root=folder.parent,
        config_dir=config_dir,
        why="to validate the transfer",
    )


def failed_check(folder: Path) -> NextCommand | None:
    """The command that shows where the newest coordinate check of the study's setup failed."""
    record = _newest_check(folder)
    if record is None or all(check.answer != "fail" for check in record.axes):
        return None
    return NextCommand.recorded(record.command, "to see where the coordinate check fails")


def _newest_check(folder: Path) -> CheckRecord | None:
    """The newest coordinate check of the study's setup."""
    setup = read_setup(folder)
    for path in StudyFolder(folder).checks():
        record = read_document(path, CheckRecord, [])
        if record and setup and (record.spec, record.measured) == (setup.digest, MEASURED):
            return record
    return None


def _cheap_ladders(folder: Path, width: int, target: int) -> list[str]:
    """Overrides for cheap ladders from `width`, none wider than `target`.

    None where the study's own configuration says anything of ladders.
    """
    try:
        tree = config_tree(folder)
        transfer, head_size = tree["transfer"], int(tree["model"].get("head_size") or 1)
    except (KeyError, TypeError, AttributeError, ValueError):
        transfer, head_size = {}, 1
    if any(transfer.get(key) != value for key, value in DEFAULT_LADDER.items()):
        return []
    widths: list[int] = []
    if width < target and width <= SMALL:
        # Four widths carry an answer far beyond them, three do not (docs/verdict.md).
        far = [8 * width] * (target >= 16 * width)
        widths = [size for size in (width, 2 * width, 4 * width, *far) if size <= target]
        widths = widths if len(widths) > 1 else [width, target]
    elif width < target:
        # A width that no head fits into is none of the default's either.
        default = [size for size in DEFAULT_WIDTHS if size % head_size == 0]
        within = [size for size in default if size <= target]
        widths = within if within != default else []
    named = [f"transfer.widths=[{','.join(map(str, widths))}]"] * bool(widths)
    return [*named, "transfer.seeds=3", "transfer.step=1"]


def after_plan(
    folder: Path,
    place: Path,
    plan: TransferPlan,
    command: NextCommand | None,
    validation: Validation | None,
) -> NextCommand | None:
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
        if command is None or command.validates:
            return command and replace(command, why="to validate the transfer")
        of_ladders = tuple(
            f"transfer.{key}=" for key in (*LADDER_AXES.values(), *DEFAULT_LADDER, "sizes")
        )
        ladders: list[str] = []
        if not any(word.lstrip("+").startswith(of_ladders) for word in command.arguments):
            ladders = _cheap_ladders(folder, plan.base.width, plan.target.width)
        return command.with_arguments("--validate", *ladders, why="to validate the transfer")
    if command is not None and not command.validates:
        # A transfer that only plans says nothing of the ladders that the verdict is on.
        trained = NextCommand.recorded(validation.command, command.why)
        command = trained or command.with_arguments("--validate", why=command.why)
    failing = [verdict.axis for verdict in verdicts if verdict.answer == "fails"]
    if failed := failed_check(folder):
        return failed
    # Of a command that scales by itself no check could say more.
    if failing and plan.parameters and _newest_check(folder) is None:
        why = f"to see whether the rules are why it fails over {' and '.join(failing)}"
        return NextCommand.of("check", study=folder.name, root=folder.parent, why=why)
    if budget := _another_budget(validation, command):
        return budget
    if settling := _settling(folder, verdicts, command):
        return settling
    targets = [verdict.target for verdict in verdicts if verdict.target]
    settle = [override for target in targets for override in target.settle]
    if command is not None and settle:
        return command.with_arguments(*settle, why="to find out whether it holds at the target")
    # Something is open, and no known command settles it: better none than a wrong one.
    if {*(v.answer for v in verdicts), *(t.answer for t in targets)} != {"holds"}:
        return None
    if not plan.parameters:
        target_command = tuple(map(str, plan.source.get("target_command") or ()))
        why = "to train the target"
        return (
            NextCommand(verb="", user_command=target_command, why=why) if target_command else None
        )
    return NextCommand.of(
        "export",
        *options(to="pytorch", to_width=plan.target.width, to_depth=plan.target.depth),
        study=folder.name,
        root=folder.parent,
        why="to use the plan in a trainer",
    )


MOST_TIMES = 20
"""A ladder that did not settle is offered a budget of up to so many times its runs."""


def _another_budget(
    validation: Validation | None, command: NextCommand | None
) -> NextCommand | None:
    """The command of a ladder that was to settle, with the budget that it likely takes."""
    if validation is None or command is None or "--settle" not in command.arguments:
        return None
    runs = sum(len(seeds) for curve in validation.curves for seeds in curve.losses.values())
    less_noise = any(key.startswith("train.") for v in validation.axes for key in v.settle)
    if less_noise or not runs < validation.needed <= MOST_TIMES * runs:
        return None
    unbound = command.without("--budget", "--hours")
    budget = ("--budget", str(validation.needed))
    why = "to settle it with as many runs"
    return replace(unbound, arguments=(*unbound.arguments, *budget), why=why)


def _settling(
    folder: Path, verdicts: Sequence[Verdict], command: NextCommand | None
) -> NextCommand | None:
    """The command that would settle the open verdicts; None where none is known to."""
    asked: dict[str, float] = {}
    for key, text in (override.split("=", 1) for each in verdicts for override in each.settle):
        # Several verdicts ask, and one command answers all: the finest step, and of all else the
        # most.
        least = min if key == "transfer.step" else max
        asked[key] = least(asked.get(key, float(text)), float(text))
    why = "to settle what cannot be said yet"
    steps = asked.pop("train.steps", None)
    # A study's steps are part of its trials: longer ones are another study's.
    # A command without {steps} trains as long as it does, whatever the study is told.
    if steps and takes(config_text(folder), "steps"):
        searched = read_searched(folder, [])
        command_before = NextCommand.recorded(searched.command, why) if searched else None
        if command_before and command_before.verb == "search":
            name = f"{folder.name[:80]}-{_written(steps)}-steps"
            return command_before.as_new_study(name, f"train.steps={_written(steps)}", why=why)
    if not asked or command is None:
        return None
    # What is settled is not trained again.
    settled = [
        f"transfer.{LADDER_AXES[verdict.axis]}=[]"
        for verdict in verdicts
        if not verdict.settle and verdict.axis in LADDER_AXES
    ]
    changes = [f"{key}={_written(value)}" for key, value in asked.items()]
    return command.with_arguments(*changes, *settled, why=why)


def _written(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:g}"


def report_of(folder: Path) -> str:
    """The command that writes the page of the study in `folder`."""
    return shlex.join(["sweeper", "report", folder.name, *root_flag(folder.parent)])
