"""A command line of the user's own after `--`, as overrides of the configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

OF_COMMANDS = {"runner": "command", "parameterization": "own", "model": "own", "data": "own"}
"""What a search of a command is made of, unless the command line says otherwise."""
_ARGUMENT = re.compile(r"^\+*runner\.arguments\.([\w.-]+)=([^\['\"].*)$", re.DOTALL)
_MAPPING = re.compile(r"\{[^{}]*[:,]")
_LITERAL = re.compile(r"^(?:runner\.)?(metric|heldout)=(.*)$", re.DOTALL)


def with_command(words: Sequence[str]) -> list[str]:
    """Arguments of `sweeper` with the words after `--` as settings of the runner.

    Verbs of studies that exist already have no use for a command, and keep the `--`.
    """
    if "--" not in words or "search" not in words[: (at := list(words).index("--"))]:
        return list(words)
    given, command = list(words[:at]), words[at + 1 :]
    chosen = {word.partition("=")[0] for word in given}
    groups = [f"{group}={name}" for group, name in OF_COMMANDS.items() if group not in chosen]
    place = [] if "runner.cwd" in chosen else [f"runner.cwd={quoted(os.getcwd())}"]
    listed = f"runner.command=[{','.join(map(quoted, command))}]"
    return [*given, *groups, listed, *place]


def forgotten(words: Sequence[str]) -> str:
    """What to say beside a refusal of `words` that hold a command without the `--` before it."""
    if "--" in words or not any(map(_is_program, words)):
        return ""
    example = "sweeper search ... -- python train.py --lr={eta}"
    return f" A command of yours stands behind --, as in: {example}"


def _is_program(word: str) -> bool:
    """Whether a word starts a command, or is an option of one with a placeholder."""
    option = word.startswith("-") and "{" in word
    return option or (
        "=" not in word
        and re.match(r"(.*/)?(python[\d.]*|torchrun)$|.*\.(py|sh)$", word) is not None
    )


def as_typed(words: Sequence[str], command: Sequence[str]) -> list[str]:
    """Inverse of `with_command`: overrides, and the `command` behind `--` if it came from there."""
    if not any(word.startswith("runner.command=[") for word in words):
        return list(words)
    added = {f"{group}={name}" for group, name in OF_COMMANDS.items()}
    hidden = ("runner.command=", "runner.cwd=")
    given = [word for word in words if word not in added and not word.startswith(hidden)]
    return [*given, "--", *command]


def literal_metric(word: str) -> str:
    """`metric=PATTERN`, short for runner.metric, its text taken as it is; other words unchanged.

    So is the text of an argument with placeholders, `runner.arguments.NAME={width//16}`.
    """
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
