"""A request's fields as the options of a command line, and what was typed as a request."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import SHELL, ConfigError, Keyword, flag, spelled
from sweeper.verbs.requests import COMMON, Option, Request, checked, options_of

COMMON_PANEL = "Common options"
SHOWN: Mapping[str, str] = {
    "json": "Print one JSON document on stdout; all else on stderr.",
    "verbose": "Print all: every table, row and note, and what each column means.",
}
"""How an answer is shown: the command line's own options, which no verb knows."""


def command_of(request: type[Request], run: Callable[..., None]) -> Callable[..., None]:
    """A function as Typer reads it: an option a field of the `request`; it calls `run`.

    `run` gets the request, and `json` and `verbose`.
    """

    def command(**typed: Any) -> None:
        switches = {name: typed.pop(name) for name in SHOWN}
        run(lambda: request_of(request, typed), **switches)

    options = options_of(request)
    parameters = [_parameter(each) for each in options.values()]
    parameters += [_switch(name, meaning) for name, meaning in SHOWN.items()]
    made: Any = command
    made.__name__ = request.verb
    made.__doc__ = inspect.getdoc(request)
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def request_of(request: type[Request], typed: Mapping[str, Any]) -> Any:
    """The request that was typed; ConfigError by the option's name for a value that it refuses."""
    options = options_of(request)
    values = {
        name: tuple(value or ()) if options[name].repeats else value
        for name, value in typed.items()
    }
    for name, value in values.items():
        if value == "" and options[name].is_path:
            raise ConfigError(Keyword(name), value, "a path")
    return checked(request, values)


def _switch(name: str, meaning: str) -> inspect.Parameter:
    made = typer.Option(flag(name), help=meaning, metavar="", rich_help_panel=COMMON_PANEL)
    hint, kind = Annotated[bool, made], inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=False, annotation=hint)


def _parameter(option: Option) -> inspect.Parameter:
    kind: Any = _typed(option)
    help_text = spelled(option.flag.help, SHELL)
    common: dict[str, Any] = {"help": help_text}
    if option.flag.metavar or option.is_path:
        common["metavar"] = option.flag.metavar or "<path>"
    elif kind is bool:
        common["metavar"] = ""
    if option.name in COMMON:
        common["rich_help_panel"] = COMMON_PANEL
    if option.flag.completes == "study":
        common["autocompletion"] = _studies
    if option.flag.positional:
        made = typer.Argument(**common, show_default=False)
    else:
        made = typer.Option(flag(option.name), **common)
    default = inspect.Parameter.empty if option.required else option.default
    if option.is_path and isinstance(default, Path):
        default = str(default)
    if option.repeats and not option.required:
        default = None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, made],
    )


def _typed(option: Option) -> Any:
    """The type of what is typed for an option: texts where Python takes more."""
    if option.repeats:
        return list[str] if option.required else list[str] | None
    if option.type is Any or option.is_path:  # an empty path would be the folder worked in
        return str if option.required else str | None
    members = set(typing.get_args(option.type)) if isinstance(option.type, types.UnionType) else ()
    if str in members:
        return str | None if types.NoneType in members else str
    return option.type


def _studies(context: typer.Context, incomplete: str) -> list[str]:
    from sweeper.study.folder import studies

    root = Path(context.params.get("root") or DEFAULT_ROOT)
    return [name for name in studies(root) if name.startswith(incomplete)]
