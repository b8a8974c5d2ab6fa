"""A verb's keyword arguments: made of its Request, and checked by it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from sweeper.api.interrupt import asked_by_user
from sweeper.api.words import in_python, setting_names, settings_words
from sweeper.errors import ConfigError, Keyword, spelled, suggest
from sweeper.files import is_path, is_text
from sweeper.verbs.requests import Option, Request, checked, options_of

F = TypeVar("F", bound=Callable[..., Any])
WORDS = "overrides"
"""The field that holds a configuration's settings: in Python they are keywords of their own."""


KEPT = type("Kept", (), {"__repr__": lambda self: "..."})()
"""The default of a setting in a signature: what the configuration has."""


def keywords_of(request: type[Request]) -> Callable[[F], F]:
    """A decorator: the function takes the request's keywords beside its own.

    What its docstring says is followed by what each keyword means.
    """

    def decorated(function: F) -> F:
        signature = inspect.signature(function)
        own = list(signature.parameters.values())
        named = {*(each.name for each in own), WORDS, "names", "name"}
        options = {n: option for n, option in options_of(request).items() if n not in named}
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [_parameter(option, kind) for option in options.values()]
        ahead = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
        behind = [p for p in own if p.kind is inspect.Parameter.VAR_KEYWORD]
        # `**settings` are the configuration's, `**keywords` the request's alone.
        names = setting_names(request.verb) if "settings" in signature.parameters else {}
        more = sorted(names.keys() - {*options} - {p.name for p in own})
        settings = [inspect.Parameter(n, kind, default=KEPT, annotation=Any) for n in more]
        settings += behind if names else []

        @wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            with in_python(keywords):
                return function(*arguments, **keywords)

        made: Any = called
        made.__signature__ = signature.replace(parameters=[*ahead, *parameters, *settings])
        meanings = [f"{name}: {spelled(option.flag.help)}" for name, option in options.items()]
        made.__doc__ = "\n\n".join([inspect.getdoc(function) or "", "\n".join(meanings)])
        return typing.cast(F, asked_by_user(made))

    return decorated


def request_of(request: type[Request], keywords: Mapping[str, Any]) -> Any:
    """The request that keywords stand for; ConfigError names the one that is refused.

    Keywords that are none of the request's are settings, as its verb has them.
    """
    options = options_of(request)
    own = {
        name: _plain(options[name], value) for name, value in keywords.items() if name in options
    }
    others = {name: value for name, value in keywords.items() if name not in options}
    if others and WORDS not in options:
        name, value = next(iter(others.items()))
        near = f"no keyword has this name; {suggest(name, options)}"
        raise ConfigError(Keyword(name), value, near)
    for name, value in own.items():
        # None is as if the keyword had not been given.
        if value is None and not options[name].required:
            own[name] = options[name].default
    made = checked(request, own)
    if WORDS in options:
        overrides = settings_words(request.verb, others, own.get("config_dir"))
        made = replace(made, overrides=(*made.overrides, *overrides))
    return made


def _plain(option: Option, value: Any) -> Any:
    """A value as records know it: numbers of other libraries, places, lists."""
    if option.is_path and isinstance(value, str | PathLike):
        if not (is_path(value) and is_text(fspath(value))):
            raise ConfigError(Keyword(option.name), value, "a path")
        return Path(fspath(value))
    origins = {typing.get_origin(kind) for kind in typing.get_args(option.type)}
    if Mapping in origins and not isinstance(value, str | Mapping):
        raise ConfigError(Keyword(option.name), value, "a text or a mapping")
    # Before the numbers: True is an Integral, too.
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if option.repeats and isinstance(value, list):
        return tuple(value)
    return value


def _parameter(option: Option, kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if option.required else option.default
    return inspect.Parameter(option.name, kind, default=default, annotation=option.type)
