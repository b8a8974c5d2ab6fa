"""Every verb's Request, by its name, of the modules that are there, and read from a typed line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sweeper.errors import flag
from sweeper.verbs.requests import Request, checked, options_of

MODULES = (
    "sweeper.verbs.requests",
    *(f"sweeper.evidence.{verb}.request" for verb in ("compare", "predict", "follow", "judge")),
)
"""Where requests stand; a verb whose folder is not there is not listed."""


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the folder that it lies in
        return False


def module_of(request: type[Request]) -> str:
    """The module that does what is asked: beside a request of its own, else of the verb's name."""
    package, _, name = request.__module__.rpartition(".")
    return f"{package}.{'verb' if name == 'request' else request.verb}"


REQUESTS: Mapping[str, type[Any]] = {
    each.verb: each
    for name in filter(_is_there, MODULES)
    for each in vars(import_module(name)).values()
    if isinstance(each, type) and each.__module__ == name
    if issubclass(each, Request) and each is not Request
}
"""Every verb's request, in the order of the help."""

SHOWN = ("--json", "--verbose")
"""Flags of a command line that say how an answer is shown, and ask for nothing."""


def read_line(line: str) -> tuple[Any, tuple[str, ...]]:
    """The request that a command line makes, and the user's command behind its `--`.

    ValueError for a line that no shell reads or that is of no verb, BadInput for a value that the
    verb refuses.
    """
    _, verb, *arguments = shlex.split(line)
    if verb not in REQUESTS:
        raise ValueError(f"there is no verb {verb}")
    options = options_of(REQUESTS[verb])
    flags = {flag(name): each for name, each in options.items() if not each.flag.positional}
    positional = next((each for each in options.values() if each.flag.positional), None)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    rest, values = iter(arguments[:at]), dict[str, Any]()
    for word in rest:
        name, is_whole, text = word.partition("=")
        if name in SHOWN:
            continue
        option = flags.get(name) if name.startswith("--") else positional
        if option is None:
            raise ValueError(f"{verb} takes no {name}")
        if option.flag.positional:
            value: Any = word
        elif option.type is bool:
            value = True
        else:
            value = option.read(text if is_whole else next(rest, ""))
        values[option.name] = (*values.get(option.name, ()), value) if option.repeats else value
    return checked(REQUESTS[verb], values), tuple(arguments[at + 1 :])
