"""A request's fields as the options of a command line, and what was typed as a request."""

from __future__ import annotations

import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import SHELL, ConfigError, Keyword, flag, spelled
from sweeper.verbs.listed import REQUESTS
from sweeper.verbs.requests import COMMON, Flag, Option, Request, checked, options_of

COMMON_PANEL = "Options of every verb"


@dataclass(frozen=True)
class Display:
    """How an answer is shown: the command line's own options, which no verb knows."""

    json: Annotated[bool, Flag("Print one JSON document on stdout; all else on stderr.")] = False
    verbose: Annotated[bool, Flag("Print every table and note, those of the page, too.")] = False


SHOWN = options_of(Display)


def common_options() -> dict[str, Option]:
    """The options of every verb; the text of one that not all have names those that do."""
    options = dict(SHOWN)
    for name in COMMON:
        verbs = [verb for verb, request in REQUESTS.items() if name in options_of(request)]
        option = options_of(REQUESTS[verbs[0]])[name]
        only = "" if len(verbs) == len(REQUESTS) else f" For {', '.join(verbs)}."
        options[name] = replace(option, flag=replace(option.flag, text=option.flag.text + only))
    return dict(sorted(options.items()))


def verb_first(words: Sequence[str]) -> list[str]:
    """The words of a command line, options of every verb behind the verb, as records keep them."""
    valued = {flag(name): option.type is not bool for name, option in common_options().items()}
    at = 0
    while at < len(words) and (name := words[at].partition("=")[0]) in valued:
        at += 2 if words[at] == name and valued[name] else 1
    return [*words[at : at + 1], *words[:at], *words[at + 1 :]]


def program(version: Any) -> Any:
    """The program's callback as Typer reads it, for its help: `verb_first` gives verbs theirs."""
    own = _keyword("version", False, Annotated[bool, version])
    return _signed(lambda **_: None, [own, *map(_parameter, common_options().values())])


def command_of(request: type[Request], run: Callable[..., None]) -> Any:
    """A function as Typer reads it: `run` gets the request that is typed, `json` and `verbose`."""

    def command(**typed: Any) -> None:
        switches = {name: typed.pop(name) for name in SHOWN}
        run(lambda: request_of(request, typed), **switches)

    command.__name__, command.__doc__ = request.verb, inspect.getdoc(request)
    options = {**options_of(request), **SHOWN}
    # The program's help has them; a shell proposes them behind the verb as well.
    hidden = () if "_SWEEPER_COMPLETE" in os.environ else (*COMMON, *SHOWN)
    return _signed(command, [_parameter(each, name in hidden) for name, each in options.items()])


def _signed(made: Any, parameters: Sequence[inspect.Parameter]) -> Any:
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {each.name: each.annotation for each in parameters}
    return made


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


def _parameter(option: Option, hidden: bool = False) -> inspect.Parameter:
    kind: Any = _typed(option)
    metavar = "<path>" if option.is_path else "" if kind is bool else None
    common: dict[str, Any] = {"help": spelled(option.flag.help, SHELL)}
    common["metavar"] = option.flag.metavar or metavar
    if option.name in (*COMMON, *SHOWN):
        common |= {"rich_help_panel": COMMON_PANEL, "hidden": hidden}
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
    return _keyword(option.name, default, Annotated[kind, made])


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


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
