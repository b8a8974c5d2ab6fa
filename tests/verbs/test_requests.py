"""A keyword stands once: the command line's options and Python's keywords are the Request's."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer

import sweeper
from sweeper.api.keywords import request_of
from sweeper.api.words import setting_names
from sweeper.cli.app import app
from sweeper.cli.options import SHOWN
from sweeper.errors import SHELL, ConfigError, Keyword, flag, spelled
from sweeper.verbs.listed import REQUESTS
from sweeper.verbs.requests import Option, options_of

COMMANDS: Any = typer.main.get_command(app)
IN_PYTHON = {
    name: function
    for name in REQUESTS
    if callable(function := getattr(sweeper, name, None)) and name != "follow"
}
"""Verbs that are functions of the package; a run is followed there from within its loop."""


def bad_values(option: Option) -> list[Any]:
    """Values that no option of its type takes."""
    numbers = option.type in (int, int | None, float, float | None)
    texts = ["x", [1], {}] if numbers else [object()]
    beyond = [] if option.bounds is None else [option.bounds.least - 1, option.bounds.above - 1]
    whole = [True, 1.5, 10**30] if option.type in (int, int | None) else []
    return [*texts, *whole, *(value for value in beyond if value > -1e300)]


@pytest.mark.parametrize("verb", REQUESTS)
def test_every_option_is_a_field(verb: str) -> None:
    options = options_of(REQUESTS[verb])
    command = COMMANDS.get_command(None, verb)
    typed = {p.name: p for p in command.params if p.name not in (*SHOWN, "help")}
    assert [*typed] == [*options]
    for name, option in options.items():
        parameter = typed[name]
        assert parameter.help == spelled(option.flag.help, SHELL), name
        assert parameter.required == option.required, name
        if not option.flag.positional:
            assert parameter.opts == [flag(name)], name
        if not (option.required or option.repeats):
            default = option.default
            assert parameter.default == (str(default) if isinstance(default, Path) else default), (
                name
            )


@pytest.mark.parametrize("verb", IN_PYTHON)
def test_every_keyword_of_python_is_a_field(verb: str) -> None:
    parameters = inspect.signature(IN_PYTHON[verb]).parameters
    own = {"model", "command", "studies", "settings"}
    own |= {*setting_names(verb)} if "settings" in parameters else set()
    options = options_of(REQUESTS[verb])
    assert {*parameters} - own <= {*options}
    assert {*options} - {*parameters} <= {"overrides", "name", "names", "study"}
    for name in {*parameters} & {*options}:
        default = parameters[name].default
        if default is not inspect.Parameter.empty and default is not None:
            assert default == options[name].default, name


@pytest.mark.parametrize("verb", REQUESTS)
def test_a_value_of_the_wrong_kind_is_refused_by_its_keyword(verb: str) -> None:
    request, options = REQUESTS[verb], options_of(REQUESTS[verb])
    needed = {name: 64 if o.type is int else "x" for name, o in options.items() if o.required}
    needed = {n: ["x"] if options[n].repeats else v for n, v in needed.items()}
    for name, option in options.items():
        for value in bad_values(option) if option.type is not Any else ():
            with pytest.raises(ConfigError) as caught:
                request_of(request, {**needed, name: value})
            assert caught.value.subject == Keyword(name, ...), (name, value)
            assert str(caught.value).startswith(f"{name}="), (name, value)


def test_a_keyword_that_is_none_has_its_near_ones_named() -> None:
    with pytest.raises(ConfigError, match=r"did you mean.*to_width"):
        request_of(REQUESTS["judge"], {"to_widht": 3})
