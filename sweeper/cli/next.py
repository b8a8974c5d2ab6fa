"""What to type next for a study as it is: the command after the last one that it has seen."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sweeper.config.command_line import command_line, repeated
from sweeper.files import try_json
from sweeper.report.documents import number, takes
from sweeper.study.lock import live_holder
from sweeper.verdict.ladder import LADDER_AXES

WIDENED = 4
"""A target's width where none has been named: so many times the base's."""
DEFAULT_WIDTHS = [32, 64, 128, 256]
DEFAULT_LADDER = {"widths": DEFAULT_WIDTHS, "depths": [], "seeds": 2, "step": 0.5, "span": 2.0}
"""What the configuration says of ladders where nobody has said anything."""
SMALL = 64
"""Up to this base a ladder above it is cheap; the default's widths are cheap above larger ones."""


def next_of(folder: Path) -> str:
    """The command that goes on with the study in `folder`; empty where nothing tells.

    What the study has recorded decides: the search, the newest plan, its verdict.
    """
    root, name = folder.parent, folder.name
    if live_holder(folder) is not None:
        return command_line("status", "--watch", *repeated((), root, None), study=name)
    search = try_json(folder / "search.json")
    if not search.get("finished"):
        return _recorded(search.get("provenance"))
    if not math.isfinite(number(search.get("objective"))):
        return ""
    plans = sorted(folder.glob("transfer/*/plan.json"), key=lambda one: one.stat().st_mtime_ns)
    if not plans:
        width = int(number((search.get("base") or {}).get("width")) or 1)
        return first_transfer(folder, width, repeated((), root, None))
    plan = try_json(plans[-1])
    return after_plan(folder, plans[-1].parent, plan, _recorded(plan.get("source")))


def first_transfer(folder: Path, width: int, flags: Sequence[str]) -> str:
    """The transfer after a search at `width`, proved by 45 to 75 runs at widths that cost little.

    What the study's own configuration says of ladders stays.
    """
    target = WIDENED * width
    words = _ladder_words(folder, width, target)
    options = ["--to-width", str(target), "--validate", *words, *flags]
    return command_line("transfer", *options, study=folder.name)


def _ladder_words(folder: Path, width: int, target: int) -> list[str]:
    """Overrides for cheap ladders from `width`, none wider than `target`.

    None where the study's own configuration says anything of ladders.
    """
    try:
        given = yaml.safe_load(_config(folder))["transfer"]
    except (yaml.YAMLError, KeyError, TypeError):
        given = {}
    if any(given.get(key) != value for key, value in DEFAULT_LADDER.items()):
        return []
    widths = _widths(width, target)
    named = [f"transfer.widths=[{','.join(map(str, widths))}]"] * bool(widths)
    return [*named, "transfer.seeds=3", "transfer.step=1"]


def _widths(width: int, target: int) -> list[int]:
    """The widths of a cheap ladder up to `target`; empty where the default's serve, or none."""
    if target <= width:
        return []
    if width <= SMALL:
        widths = [one for one in (width, 2 * width, 4 * width) if one <= target]
        return widths if len(widths) > 1 else [width, target]
    within = [one for one in DEFAULT_WIDTHS if one <= target]
    return within if within != DEFAULT_WIDTHS else []


def after_plan(
    folder: Path,
    place: Path,
    plan: Mapping[str, Any],
    command: str,
    validation: Mapping[str, Any] | None = None,
) -> str:
    """The command after the `command` that left a plan, and maybe a verdict, in `place`.

    Validation, the cause of a failure, what would settle a doubt, the trend, or files for another
    trainer. `validation` is the verdict's record (None: the one on eta that lies beside the plan).
    """
    if validation is None:
        validation = try_json(place / "validation.json")
    axes = {str(axis.get("axis")): axis for axis in validation.get("axes") or ()}
    if not axes:
        if not command or "--validate" in shlex.split(command):
            return command
        return shlex.join([*shlex.split(command), "--validate", *_cheap(folder, plan, command)])
    command = _proving(command, validation)
    if validation.get("hyperparameter", "eta") == "eta":
        for axis in ("width", "depth"):
            if axes.get(axis, {}).get("answer") == "fails" and not _diagnosed(folder, place, axis):
                flags = repeated((), folder.parent, None)
                return command_line("diagnose", "--over", axis, *flags, study=folder.name)
    if settling := _settling(folder, list(axes.values()), command):
        return settling
    if any(axis.get("up_to") for axis in axes.values()):
        return with_override(command, "transfer.correct=true")
    holds = {axis.get("answer") for axis in axes.values()} == {"holds"}
    return _used(folder, plan) if holds else ""


def _cheap(folder: Path, plan: Mapping[str, Any], command: str) -> list[str]:
    """Overrides for cheap ladders of a plan; none where its `command` says anything of ladders."""
    sizes = [number((plan.get(key) or {}).get("width")) for key in ("base", "target")]
    keys = (*LADDER_AXES.values(), *DEFAULT_LADDER, "sizes")
    said = tuple(f"transfer.{key}=" for key in keys)
    if any(word.lstrip("+").startswith(said) for word in shlex.split(command)):
        return []
    if not all(map(math.isfinite, sizes)):
        return []
    return _ladder_words(folder, *map(int, sizes))


def _proving(command: str, validation: Mapping[str, Any]) -> str:
    """The command that trained the ladders, where `command` only plans: its ladders are lost."""
    if not command or "--validate" in shlex.split(command):
        return command
    return _recorded(validation) or f"{command} --validate"


def _diagnosed(folder: Path, place: Path, axis: str) -> bool:
    """Whether a failure was diagnosed since it was judged."""
    found, judged = folder / f"transfer/diagnosis-{axis}.json", place / "validation.json"
    if not (found.exists() and judged.exists()):
        return found.exists()
    return found.stat().st_mtime_ns >= judged.stat().st_mtime_ns


def _used(folder: Path, plan: Mapping[str, Any]) -> str:
    """What a plan that holds is for: another trainer's files, or the command's own large run."""
    if not plan.get("parameters"):
        return shlex.join(map(str, (plan.get("source") or {}).get("target_command") or ()))
    size, flags = plan["target"], repeated((), folder.parent, None)
    words = ["--to-width", str(size["width"]), "--to-depth", str(size["depth"]), *flags]
    return command_line("export", "--to", "pytorch", *words, study=folder.name)


def _settling(folder: Path, axes: Sequence[Mapping[str, Any]], command: str) -> str:
    """The command that would settle the open verdicts; empty where none is known to."""
    asked: dict[str, float] = {}
    for key, value in (word.split("=", 1) for axis in axes for word in _settle(axis)):
        least = min if key == "transfer.step" else max
        asked[key] = least(asked.get(key, number(value)), number(value))
    searched = _recorded(try_json(folder / "search.json").get("provenance"))
    steps = asked.pop("train.steps", None)
    if steps and searched.startswith("sweeper search ") and takes(_config(folder), "steps"):
        changed = f"train.steps={_written(steps)}"
        return searched_anew(searched, f"{folder.name[:80]}-{_written(steps)}-steps", [changed])
    for key, best in asked.items():
        command = with_override(command, f"{key}={_written(best)}")
    for axis in axes if asked else ():
        if not _settle(axis) and axis.get("axis") in LADDER_AXES:
            command = with_override(command, f"transfer.{LADDER_AXES[axis['axis']]}=[]")
    return command if asked else ""


def _config(folder: Path) -> str:
    path = folder / "config.yaml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _written(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:g}"


def _settle(axis: Mapping[str, Any]) -> list[str]:
    """What would settle an axis, as overrides; earlier records have the seeds alone."""
    if (seeds := (axis.get("seed_advice") or {}).get("seeds")) and not axis.get("settle"):
        return [f"transfer.seeds={seeds}"]
    return [str(word) for word in axis.get("settle") or () if "=" in str(word)]


def with_override(command: str, override: str) -> str:
    """A recorded command line with one more override, in place of an earlier one of its key."""
    if not command:
        return ""
    key = override.partition("=")[0]
    words, behind = _typed(command)
    kept = [word for word in words if not word.startswith(f"{key}=")]
    return shlex.join([*kept, override, *behind])


def searched_anew(command: str, name: str, changes: Sequence[str]) -> str:
    """A recorded search as another study, with some overrides changed.

    What the recorded one said of the setup before it does not go for a study that has none.
    """
    words, behind = _typed(command)
    kept = []
    keys = tuple(f"{change.partition('=')[0].lstrip('+')}=" for change in changes)
    for index, word in enumerate(words):
        named = word.startswith(("study=", "study.name=", "--study", "--new-setup"))
        if not (
            named or word.lstrip("+").startswith(keys) or words[max(0, index - 1)] == "--study"
        ):
            kept.append(word)
    return shlex.join([*kept, *changes, "--study", name, *behind])


def _recorded(record: Mapping[str, Any] | None) -> str:
    """The command that made a record, as it was typed; without --json, which is for programs."""
    try:
        words, behind = _typed(str((record or {}).get("command") or ""))
    except ValueError:  # a damaged record
        return ""
    return shlex.join([*(word for word in words if word != "--json"), *behind])


def _typed(command: str) -> tuple[list[str], list[str]]:
    """What is sweeper's of a command, and what is the user's: a first `--` and all behind it."""
    words = shlex.split(command)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at:]
