"""What to type next: a command as a value, and the command that a study as it is asks for."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from sweeper.config.command_line import root_flag, split_user_command, without_root
from sweeper.files import try_json
from sweeper.report.documents import number, takes
from sweeper.study.lock import live_holder
from sweeper.study.optuna_copy import redact_word
from sweeper.verdict.ladder import LADDER_AXES

if TYPE_CHECKING:
    from sweeper.config.settings import Settings

WIDENED = 4
"""A target's width where none has been named: so many times the base's."""
DEFAULT_WIDTHS = [32, 64, 128, 256]
DEFAULT_LADDER = {"widths": DEFAULT_WIDTHS, "depths": [], "seeds": 2, "step": 0.5, "span": 2.0}
"""What the configuration says of ladders where nobody has said anything."""
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
    def recorded(cls, record: Mapping[str, Any] | None, why: str) -> NextCommand | None:
        """The command that made a record, as typed but for --json, which is for programs.

        None where the record keeps no command, or is damaged.
        """
        try:
            words = shlex.split(str((record or {}).get("command") or ""))
        except ValueError:
            return None
        if len(words) < 2:
            return None
        _, verb, *rest = words
        at = rest.index("--") if "--" in rest else len(rest)
        arguments = tuple(word for word in rest[:at] if word != "--json")
        return cls(verb=verb, arguments=arguments, user_command=tuple(rest[at + 1 :]), why=why)

    def __str__(self) -> str:
        """The line as a shell takes it, every word quoted where it must be."""
        behind = ["--", *self.user_command] * bool(self.user_command)
        return shlex.join(
            ["sweeper", self.verb, *self.arguments, *behind] if self.verb else self.user_command
        )

    @property
    def validates(self) -> bool:
        """Whether it trains ladders."""
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
        kept = [
            word
            for before, word in zip(("", *self.arguments), self.arguments, strict=False)
            if before != "--study"
            and not word.startswith(dropped)
            and not word.lstrip("+").startswith(changed)
        ]
        return replace(self, arguments=(*kept, *overrides, "--study", name), why=why)


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """How a verb's configuration was given, for commands that go on with the same one.

    `study`: it is that of a study that exists, under whose optimum the verb works.
    """

    overrides: Sequence[str] = ()
    config_dir: Path | None = None
    study: str | None = None

    def again(
        self,
        verb: str,
        settings: Settings,
        *changes: str,
        without: Sequence[str] = (),
        why: str,
    ) -> NextCommand:
        """`verb` for the same configuration with `changes`, and no override of keys `without`.

        A search's user command goes back behind `--`, and no password is shown.
        """
        keys = (*(change.partition("=")[0] for change in changes if "=" in change), *without)
        dropped = tuple(f"{key}=" for key in keys)
        kept = [word for word in self.overrides if not word.startswith(dropped)]
        overrides, user_command = kept, list[str]()
        if verb == "search":
            overrides, user_command = split_user_command(kept, settings.raw["runner"])
        command = NextCommand.of(
            verb,
            *overrides,
            *changes,
            study=self.study,
            root=settings.root,
            config_dir=self.config_dir,
            why=why,
        )
        return replace(command, user_command=tuple(user_command))


# What a study has recorded decides what comes next: the search, the newest plan, its verdict.


def next_of(folder: Path) -> NextCommand | None:
    """The command that goes on with the study in `folder`; None where nothing tells."""
    root, name = folder.parent, folder.name
    if live_holder(folder) is not None:
        why = "to see how far it is"
        return NextCommand.of("status", "--watch", study=name, root=root, why=why)
    search = try_json(folder / "search.json")
    if not search.get("finished"):
        return NextCommand.recorded(search.get("provenance"), "to go on with the search")
    if not math.isfinite(number(search.get("objective"))):
        return None
    plans = sorted(folder.glob("transfer/*/plan.json"), key=lambda one: one.stat().st_mtime_ns)
    if not plans:
        width = int(number((search.get("base") or {}).get("width")) or 1)
        return first_transfer(folder, width)
    plan = try_json(plans[-1])
    command = NextCommand.recorded(plan.get("source"), "to plan it again")
    return after_plan(folder, plans[-1].parent, plan, command)


def first_transfer(folder: Path, width: int, config_dir: Path | None = None) -> NextCommand:
    """The transfer after a search at `width`, validated by 45 to 75 runs at cheap widths.

    What the study's own configuration says of ladders stays.
    """
    target = WIDENED * width
    return NextCommand.of(
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


def _cheap_ladders(folder: Path, width: int, target: int) -> list[str]:
    """Overrides for cheap ladders from `width`, none wider than `target`.

    None where the study's own configuration says anything of ladders.
    """
    try:
        transfer = yaml.safe_load(_config(folder))["transfer"]
    except (yaml.YAMLError, KeyError, TypeError):
        transfer = {}
    if any(transfer.get(key) != value for key, value in DEFAULT_LADDER.items()):
        return []
    widths: list[int] = []
    if width < target and width <= SMALL:
        # Four widths carry an answer far beyond them, three do not (docs/verdict.md).
        far = [8 * width] * (target >= 16 * width)
        widths = [size for size in (width, 2 * width, 4 * width, *far) if size <= target]
        widths = widths if len(widths) > 1 else [width, target]
    elif width < target:
        within = [size for size in DEFAULT_WIDTHS if size <= target]
        widths = within if within != DEFAULT_WIDTHS else []
    named = [f"transfer.widths=[{','.join(map(str, widths))}]"] * bool(widths)
    return [*named, "transfer.seeds=3", "transfer.step=1"]


def after_plan(
    folder: Path,
    place: Path,
    plan: Mapping[str, Any],
    command: NextCommand | None,
    validation: Mapping[str, Any] | None = None,
) -> NextCommand | None:
    """The command after the `command` that left a plan, and maybe a verdict, in `place`.

    Validation, the cause of a failure, what would settle a doubt, the trend, or files for another
    trainer. `validation` is the verdict's record (None: the one on eta that lies beside the plan).
    """
    if validation is None:
        validation = try_json(place / "validation.json")
    axes = {str(axis.get("axis")): axis for axis in validation.get("axes") or ()}
    if not axes:
        if command is None or command.validates:
            return command and replace(command, why="to validate the transfer")
        ladders = _ladders_of_plan(folder, plan, command)
        return command.with_arguments("--validate", *ladders, why="to validate the transfer")
    if command is not None and not command.validates:
        # A transfer that only plans says nothing of the ladders that the verdict is on.
        trained = NextCommand.recorded(validation, command.why)
        command = trained or command.with_arguments("--validate", why=command.why)
    if validation.get("hyperparameter", "eta") == "eta":
        for axis in ("width", "depth"):
            if axes.get(axis, {}).get("answer") == "fails" and not _diagnosed(folder, place, axis):
                why = f"to find out why it fails over {axis}"
                return NextCommand.of(
                    "diagnose", "--over", axis, study=folder.name, root=folder.parent, why=why
                )
    if settling := _settling(folder, list(axes.values()), command):
        return settling
    targets = [axis["target"] for axis in axes.values() if axis.get("target")]
    asked = [str(override) for target in targets for override in target.get("settle") or ()]
    if command is not None and asked:
        return command.with_arguments(*asked, why="to find out whether it holds at the target")
    if {part.get("answer") for part in (*axes.values(), *targets)} != {"holds"}:
        return None
    if not plan.get("parameters"):
        target = (plan.get("source") or {}).get("target_command") or ()
        words = tuple(map(str, target))
        why = "to train the target"
        return NextCommand(verb="", user_command=words, why=why) if words else None
    width, depth = (str(plan["target"][key]) for key in ("width", "depth"))
    return NextCommand.of(
        "export",
        *("--to", "pytorch", "--to-width", width, "--to-depth", depth),
        study=folder.name,
        root=folder.parent,
        why="to use the plan in a trainer",
    )


def _ladders_of_plan(folder: Path, plan: Mapping[str, Any], command: NextCommand) -> list[str]:
    """Overrides for cheap ladders of a plan; none where its `command` says anything of ladders."""
    keys = (*LADDER_AXES.values(), *DEFAULT_LADDER, "sizes")
    of_ladders = tuple(f"transfer.{key}=" for key in keys)
    if any(word.lstrip("+").startswith(of_ladders) for word in command.arguments):
        return []
    sizes = [number((plan.get(key) or {}).get("width")) for key in ("base", "target")]
    if not all(map(math.isfinite, sizes)):
        return []
    return _cheap_ladders(folder, *map(int, sizes))


def _diagnosed(folder: Path, place: Path, axis: str) -> bool:
    """Whether a failure was diagnosed since it was judged."""
    found, judged = folder / f"transfer/diagnosis-{axis}.json", place / "validation.json"
    if not (found.exists() and judged.exists()):
        return found.exists()
    return found.stat().st_mtime_ns >= judged.stat().st_mtime_ns


def _settling(
    folder: Path, axes: Sequence[Mapping[str, Any]], command: NextCommand | None
) -> NextCommand | None:
    """The command that would settle the open verdicts; None where none is known to."""
    asked: dict[str, float] = {}
    for key, value in (word.split("=", 1) for axis in axes for word in _settled_by(axis)):
        least = min if key == "transfer.step" else max
        asked[key] = least(asked.get(key, number(value)), number(value))
    why = "to settle what cannot be said yet"
    searched = NextCommand.recorded(try_json(folder / "search.json").get("provenance"), why)
    steps = asked.pop("train.steps", None)
    # A study's steps are part of its trials: longer ones are another study's.
    if steps and searched and searched.verb == "search" and takes(_config(folder), "steps"):
        longer = _written(steps)
        name = f"{folder.name[:80]}-{longer}-steps"
        return searched.as_new_study(name, f"train.steps={longer}", why=why)
    if not asked or command is None:
        return None
    settled = [
        f"transfer.{LADDER_AXES[axis['axis']]}=[]"
        for axis in axes
        if not _settled_by(axis) and axis.get("axis") in LADDER_AXES
    ]
    changes = [f"{key}={_written(value)}" for key, value in asked.items()]
    return command.with_arguments(*changes, *settled, why=why)


def _config(folder: Path) -> str:
    path = folder / "config.yaml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _written(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:g}"


def _settled_by(axis: Mapping[str, Any]) -> list[str]:
    """What would settle an axis, as overrides; earlier records have the seeds alone."""
    if (seeds := (axis.get("seed_advice") or {}).get("seeds")) and not axis.get("settle"):
        return [f"transfer.seeds={seeds}"]
    return [str(word) for word in axis.get("settle") or () if "=" in str(word)]
