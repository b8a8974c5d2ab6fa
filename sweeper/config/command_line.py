"""What a user types, as overrides: a command behind `--`, the study, the folder of all studies."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any

from sweeper.errors import ConfigError

USER_COMMAND_GROUPS = {
    "runner": "command",
    "parameterization": "own",
    "model": "own",
    "data": "own",
}
"""Groups of a search of a user command, unless the command line says otherwise."""
_ARGUMENT = re.compile(r"^\+*runner\.arguments\.([\w.-]+)=([^\['\"].*)$", re.DOTALL)
_MAPPING = re.compile(r"\{[^{}]*[:,]")
_LITERAL = re.compile(r"^(?:runner\.)?(metric|heldout)=(.*)$", re.DOTALL)


def with_user_command(command_line: Sequence[str]) -> list[str]:
    """Arguments with the words after `--` as settings; verbs without a command keep the `--`."""
    if "--" not in command_line:
        return list(command_line)
    at = list(command_line).index("--")
    arguments, command = list(command_line[:at]), command_line[at + 1 :]
    if "search" not in arguments:  # behind "--" it would be the script's own word
        return list(command_line)
    # As overrides the command is kept with the study, and shown and changed like any setting.
    chosen = {word.partition("=")[0] for word in arguments}
    groups = [
        f"{group}={name}" for group, name in USER_COMMAND_GROUPS.items() if group not in chosen
    ]
    cwd = [] if "runner.cwd" in chosen else [f"runner.cwd={quoted(os.getcwd())}"]
    listed = f"runner.command=[{','.join(map(quoted, command))}]"
    return [*arguments, *groups, listed, *cwd]


def missing_dashes(overrides: Sequence[str]) -> str:
    """What an error adds about `overrides` that hold a command without the `--` before it."""
    if "--" in overrides or not any(map(_is_program, overrides)):
        return ""
    example = "sweeper search ... -- python train.py --lr={eta}"
    return f" A command of yours stands behind --, as in: {example}"


def _is_program(word: str) -> bool:
    option = word.startswith("-") and "{" in word
    return option or (
        "=" not in word
        and re.match(r"(.*/)?(python[\d.]*|torchrun)$|.*\.(py|sh)$", word) is not None
    )


def split_user_command(
    overrides: Sequence[str], runner: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Inverse of `with_user_command`: overrides, and the command of the `runner`, if any."""
    if not any(word.startswith("runner.command=[") for word in overrides):
        return list(overrides), []
    added = {f"{group}={name}" for group, name in USER_COMMAND_GROUPS.items()}
    # What `with_user_command` adds by itself; a cwd that the user gave is another word, and stays.
    added.add(f"runner.cwd={quoted(os.getcwd())}")
    overrides = [w for w in overrides if w not in added and not w.startswith("runner.command=")]
    return overrides, list(runner.get("command", ()))


def literal_metric(word: str) -> str:
    """`metric=PATTERN`, short for runner.metric, its text taken as it is; others unchanged.

    So is the text of an argument with placeholders, `runner.arguments.NAME={width//16}`.
    """
    # Hydra would read braces as a mapping, and much of a regular expression not at all.
    argument = _ARGUMENT.match(word)
    if argument and "{" in argument[2] and not _MAPPING.match(argument[2]):
        return f"++runner.arguments.{argument[1]}={quoted(argument[2])}"
    match = _LITERAL.match(word)
    if match is None:
        return word
    text = match[2]
    if text == "null" or (len(text) > 1 and text[0] == text[-1] and text[0] in "'\""):
        return f"runner.{match[1]}={text}"
    return f"runner.{match[1]}={quoted(text)}"


def quoted(text: str) -> str:
    """A text as Hydra reads it back, whatever is in it."""
    # Backslashes are themselves there, but for those before a quote or at the end; and a dollar
    # with a brace would be an interpolation.
    escaped = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + "\\${", text)
    escaped = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), escaped)
    return "'" + escaped + "'"


FIRST = "first"
FROM = "search.from"
"""The key that names the study whose answer a search begins at: no setting of the search's own."""
DEFAULT_ROOT = "runs"
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_./][A-Za-z0-9_./-]*", re.IGNORECASE)
"""What Hydra takes for a text without quotes around it."""
_NAME = re.compile(r"^study(?:\.name)?=(?!\{)(.*)$", re.DOTALL)
_ROOT = re.compile(r"^root=(.*)$", re.DOTALL)


def with_place(overrides: Sequence[str], study: str | None, root: Path | str | None) -> list[str]:
    """The overrides with --study and --root among them; BadInput where both name one otherwise."""
    _single("study", [study, *_values(_NAME, overrides)])
    _single("root", [root, *_values(_ROOT, overrides)])
    named = {"study": study, "root": root}
    return [*overrides, *(override(key, str(to)) for key, to in named.items() if to is not None)]


def of_study(
    overrides: Sequence[str], study: str | None, root: Path | str | None
) -> tuple[str | None, list[str]]:
    """The study that --study or study=NAME name, and the other overrides, --root among them."""
    name = _single("study", [study, *_values(_NAME, overrides)])
    return name, with_place([word for word in overrides if not _NAME.match(word)], None, root)


def place_of(
    overrides: Sequence[str], study: str | None, root: Path | str | None
) -> tuple[str | None, Path]:
    """The study and the folder of all, of verbs that take nothing else: NAME is an argument."""
    names = [word for word in overrides if not _ROOT.match(word)]
    name = _single("study", [study, *(name.removeprefix("study=") for name in names)])
    folder = _single("root", [root, *_values(_ROOT, overrides)])
    if folder == "":
        raise ConfigError("root", folder, "the path of a folder")
    return name, Path(expanduser(DEFAULT_ROOT if folder is None else folder))


def key_of(word: str) -> str:
    """The key that an override sets, or adds."""
    return word.partition("=")[0].lstrip("+")


def changed(
    overrides: Sequence[str], changes: Sequence[str], without: Sequence[str] = ()
) -> tuple[str, ...]:
    """The overrides with `changes` in the place of those of their keys, none of keys `without`."""
    dropped = {*map(key_of, changes), *without}
    return (*(word for word in overrides if key_of(word) not in dropped), *changes)


def override(key: str, value: str) -> str:
    """`key=value` in Hydra's syntax, of a text."""
    return f"{key}={value if _PLAIN.fullmatch(value) else quoted(value)}"


def _values(pattern: re.Pattern[str], overrides: Sequence[str]) -> list[str]:
    matches = (pattern.match(word) for word in overrides)
    return [re.sub(r"""^(['"])(.*)\1$""", r"\2", match[1]) for match in matches if match]


def _single(key: str, candidates: Sequence[Path | str | None]) -> str | None:
    values = list(dict.fromkeys(str(value) for value in candidates if value is not None))
    if len(values) > 1:
        raise ConfigError(key, values, f"one {key} at a time")
    return values[0] if values else None
