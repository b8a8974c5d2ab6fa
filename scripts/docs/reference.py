"""The reference that the code and conf/ write: commands, groups and keys, as Markdown."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

from sweeper.cli.app import app
from sweeper.records import _TYPE_NAMES, Bounds, _hints, import_target
from sweeper.registry import OVERLAYS, TARGET, conf_folder

SECTIONS = {
    "study": "sweeper.config.settings.StudySettings",
    "train": "sweeper.trial.TrainSettings",
    "transfer": "sweeper.stats.ladder.LadderRule",
    "check": "sweeper.check.judge.CheckRule",
}
"""The classes of the sections that are no plugins."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars within cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )


def code(text: str) -> str:
    """A text as inline code, also one that holds backticks; nothing for nothing."""
    if "`" in text:
        return f"`` {text} ``"
    return f"`{text}`" if text else ""


# Commands


def commands() -> str:
    """Every verb with its arguments and options, as `--help` has them."""
    program: Any = typer.main.get_command(app)
    verbs = [_verb(name, program.get_command(None, name)) for name in program.commands]
    return "\n\n".join([_options(program), *verbs, program.epilog])


def _verb(name: str, command: Any) -> str:
    usage = [_usage(parameter) for parameter in command.params if not parameter.hidden]
    words = " ".join(["sweeper", name, "[OPTIONS]", *filter(None, usage)])
    return "\n\n".join(
        [f"## {name}", f"```text\n{words}\n```", _paragraphs(command.help), _options(command)]
    )


def _usage(parameter: Any) -> str:
    """An argument, or an option that has to be given, as the usage line shows it."""
    if parameter.param_type_name == "argument":
        return f"[{parameter.metavar}]..."
    return f"{parameter.opts[0]} VALUE" if parameter.required else ""


def _paragraphs(text: str) -> str:
    """A docstring's text; lines that are commands stand as code."""
    lines = (text or "").splitlines()
    return "\n".join(
        f"\n    {line}\n" if line.startswith("sweeper ") else plain(line) for line in lines
    )


def _options(command: Any) -> str:
    rows = [
        _row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)
    ]
    return table(["option", "meaning"], rows) if rows else ""


def _row(parameter: Any) -> list[str]:
    if parameter.param_type_name == "argument":
        return [code(parameter.metavar), plain(parameter.help)]
    needed = " Required." if parameter.required else ""
    names = ", ".join(map(code, [*parameter.opts, *parameter.secondary_opts]))
    return [names, plain(parameter.help) + needed]


def plain(text: str | None) -> str:
    """A help text for Markdown: what looks like HTML stays as it is."""
    return re.sub(r"[*_]", r"\\\g<0>", (text or "").replace("<", "&lt;").replace("{", "&#123;"))


# Configuration


@dataclass(frozen=True)
class Key:
    """A key of a config: its dotted name, its default as written, its comment and its bounds."""

    name: str
    default: str
    comment: str
    allowed: str = ""


def allowed_values(target: Callable[..., Any]) -> dict[str, str]:
    """What keys may be, by name, where an annotation says more than a type.

    Keys of records within are dotted: `line.points`.
    """
    allowed: dict[str, str] = {}
    for name, hint in _hints(target).items():
        if is_dataclass(hint):
            inner = allowed_values(typing.cast(type, hint))
            allowed |= {f"{name}.{key}": text for key, text in inner.items()}
        elif text := _described_range(hint):
            allowed[name] = text
    return allowed


def _described_range(hint: Any) -> str:
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return ", ".join(str(member) for member in members[1:] if isinstance(member, Bounds))
    if origin is tuple:
        inner = _described_range(members[0])
        return inner and f"a list, each {inner}"
    if origin in (typing.Union, types.UnionType):
        parts = [_described_range(m) or _TYPE_NAMES.get(m, "") for m in members]
        return " or ".join(filter(None, parts)) if any(map(_described_range, members)) else ""
    return ", ".join(map(str, members)) if origin is Literal else ""


def sections() -> str:
    """The keys of `conf/config.yaml` by section: those that belong to no group."""
    path = conf_folder() / "config.yaml"
    read = [key for key in keys(path) if not key.name.startswith("defaults")]
    names = dict.fromkeys(key.name.partition(".")[0] for key in read if "." in key.name)
    plain_keys = [key for key in read if "." not in key.name]
    parts = [_keys_table(plain_keys)]
    for name in names:
        allowed = allowed_values(import_target(SECTIONS[name]))
        of_section = [
            replace(key, allowed=allowed.get(key.name.partition(".")[2], ""))
            for key in read
            if key.name.startswith(f"{name}.")
        ]
        parts.append(f"### `{name}`\n\n{_keys_table(of_section)}")
    return "\n\n".join(parts)


def groups() -> str:
    """Every group of `conf/` with its options: what each is, its class and its keys."""
    folders = sorted(path for path in conf_folder().iterdir() if path.is_dir())
    return "\n\n".join(
        "\n\n".join([f"### `{folder.name}`", *map(_option, sorted(folder.glob("*.yaml")))])
        for folder in folders
    )


def _option(path: Path) -> str:
    """An option of a group. Those that set keys of other groups are shown as they are written."""
    group, text = path.parent.name, path.read_text(encoding="utf-8")
    about = f"#### `{group}={path.stem}`\n\n{plain(head_comment(text))}"
    if group in OVERLAYS:
        settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        return f"{about}\n\n```yaml\n{settings.strip()}\n```"
    read = list(keys(path))
    target = "".join(key.default for key in read if key.name == TARGET)
    base = "".join(key.default for key in read if key.name == "defaults")
    notes = [f"Class: `{target}`." if target else ""]
    notes += [
        f"All other keys are those of `{group}={base.strip('[').split(',')[0]}`." if base else ""
    ]
    allowed = allowed_values(import_target(target)) if target else {}
    shown = [
        replace(key, name=f"{group}.{key.name}", allowed=allowed.get(key.name, ""))
        for key in read
        if key.name not in (TARGET, "defaults")
    ]
    return "\n\n".join(filter(None, [about, *notes, _keys_table(shown)]))


def _keys_table(read: Sequence[Key]) -> str:
    rows = [
        [code(key.name), code(key.default), plain(key.comment), plain(key.allowed)] for key in read
    ]
    return table(["key", "default", "meaning", "allowed"], rows) if rows else ""


def head_comment(text: str) -> str:
    """The comment that a config begins with, which says what it is."""
    lines = [line for line in text.splitlines() if "@package" not in line]
    return " ".join(line.lstrip("# ") for line in takewhile(lambda line: line[:1] == "#", lines))


def keys(path: Path) -> Iterator[Key]:
    """The keys of a config in their order; a mapping written on one line is one key."""
    text = path.read_text(encoding="utf-8")
    if node := yaml.compose(text):
        yield from _of_mapping(node, text, "")


def _of_mapping(node: Any, text: str, prefix: str) -> Iterator[Key]:
    for name, value in node.value:
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _of_mapping(value, text, f"{prefix}{name.value}.")
        else:
            yield Key(f"{prefix}{name.value}", _written(value, text), _comment(name, value, text))


def _written(value: Any, text: str) -> str:
    """A value as its file has it, on one line."""
    if isinstance(value, yaml.SequenceNode) and not value.flow_style:
        items = (_written(item, text) for item in value.value)
        return f"[{', '.join(items)}]"
    return " ".join(text[value.start_mark.index : value.end_mark.index].split())


def _comment(name: Any, value: Any, text: str) -> str:
    """What is said of a key: in the lines right above it, behind it, and on from there.

    A comment that goes on in the next line breaks off at a comma.
    """
    lines = text.splitlines()
    first, last = name.start_mark.line, value.end_mark.line
    above: list[str] = []
    for line in reversed(lines[:first]):
        if not line.lstrip().startswith("#"):
            break
        above.insert(0, line.lstrip(" #"))
    if len(above) == first or (above and lines[first - len(above) - 1].endswith(",")):
        above = []  # the comment of the whole file, or of the key before
    _, hash_, behind = lines[last][value.end_mark.column :].partition("#")
    words = [behind.strip()] if hash_ else []
    while words and words[-1].endswith(","):
        last += 1
        words.append(lines[last].lstrip(" #"))
    return " ".join([*above, *words])
