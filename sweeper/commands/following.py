"""What to type next for a study as it is: the command after the last one that it has seen."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.files import try_json
from sweeper.lock import live_holder
from sweeper.overrides import command_line, repeated
from sweeper.report.documents import number

WIDENED = 4
"""A target's width where none has been named: so many times the base's."""


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
        width = str(WIDENED * int(number((search.get("base") or {}).get("width")) or 1))
        flags = repeated((), root, None)
        return command_line("transfer", "--to-width", width, "--validate", *flags, study=name)
    plan, validation = try_json(plans[-1]), try_json(plans[-1].with_name("validation.json"))
    return _after_plan(folder, plan, validation)


def _after_plan(folder: Path, plan: Mapping[str, Any], validation: Mapping[str, Any]) -> str:
    """Validation, the cause of a failure, more seeds, the trend, or files for another trainer."""
    command, flags = _recorded(plan.get("source")), repeated((), folder.parent, None)
    axes = {str(axis.get("axis")): axis for axis in validation.get("axes") or ()}
    answers = {name: axis.get("answer") for name, axis in axes.items()}
    if not axes:
        return f"{command} --validate" if command and "--validate" not in command else command
    failed = [name for name in ("width", "depth") if answers.get(name) == "fails"]
    undiagnosed = [n for n in failed if not (folder / f"transfer/diagnosis-{n}.json").exists()]
    if undiagnosed:
        return command_line("diagnose", "--over", undiagnosed[0], *flags, study=folder.name)
    advice = [axis.get("seed_advice") or {} for axis in axes.values()]
    if seeds := max((int(one.get("seeds") or 0) for one in advice), default=0):
        return with_override(command, f"transfer.seeds={seeds}")
    if any(axis.get("up_to") for axis in axes.values()):
        return with_override(command, "transfer.correct=true")
    if set(answers.values()) == {"holds"} and plan.get("parameters"):
        size = plan["target"]
        words = ["--to-width", str(size["width"]), "--to-depth", str(size["depth"])]
        return command_line("export", "--to", "pytorch", *words, *flags, study=folder.name)
    return shlex.join(map(str, (plan.get("source") or {}).get("target_command") or ()))


def with_override(command: str, override: str) -> str:
    """A recorded command line with one more override, in place of an earlier one of its key."""
    if not command:
        return ""
    key = override.partition("=")[0]
    words = [word for word in shlex.split(command) if not word.startswith(f"{key}=")]
    behind = words.index("--") if "--" in words else len(words)
    return shlex.join([*words[:behind], override, *words[behind:]])


def searched_anew(command: str, name: str, changes: Sequence[str]) -> str:
    """A recorded search as another study, with some overrides changed."""
    words, kept = shlex.split(command), []
    keys = tuple(f"{change.partition('=')[0].lstrip('+')}=" for change in changes)
    for index, word in enumerate(words):
        named = word.startswith(("study=", "study.name=", "--study"))
        if not (
            named or word.lstrip("+").startswith(keys) or words[max(0, index - 1)] == "--study"
        ):
            kept.append(word)
    behind = kept.index("--") if "--" in kept else len(kept)
    return shlex.join([*kept[:behind], *changes, "--study", name, *kept[behind:]])


def _recorded(record: Mapping[str, Any] | None) -> str:
    """The command that made a record, as it was typed; without --json, which is for programs."""
    command = str((record or {}).get("command") or "")
    return re.sub(r" --json(?= |$)", "", command)
