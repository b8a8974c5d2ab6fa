"""Keyword arguments as the words of a command line, and a command line as a call of Python.

A keyword is a group or a section of the configuration (`optimizer`, `train`), a key of the verb's
own section by its last name (`width`, `steps`; `widths` in a transfer), or a whole dotted key.
Any other, and what stands below a group, the configuration itself checks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from sweeper.config.command_line import override
from sweeper.config.compose import parse_overrides
from sweeper.errors import BadInput, Call, ConfigError, Python, SweeperError, spelled
from sweeper.launch.code import MAIN
from sweeper.registry import OVERLAYS, TARGET, groups
from sweeper.scaling.spec import RULE_KEYS
from sweeper.stats.ladder import LadderRule
from sweeper.trial import TrainSettings

SIZES = ("width", "depth")
RUNNER_KEYS = ("metric", "heldout")
"""Keys of a command's runner that are given without its name."""
SECTIONS = ("train", "transfer", "check")


def setting_names(verb: str, config_dir: Path | None = None) -> dict[str, str]:
    """Keywords of a verb's settings, a section's key with its section; groups are their own."""
    groups_there = {*groups(config_dir), *SECTIONS, *OVERLAYS}
    keys = dict.fromkeys(SIZES, "model") | {key.name: "train" for key in fields(TrainSettings)}
    if verb in ("transfer", "compare"):
        keys = {key.name: "transfer" for key in fields(LadderRule)}
    return keys | dict.fromkeys(RUNNER_KEYS, "") | dict.fromkeys(groups_there, "groups")


def settings_words(verb: str, settings: Mapping[str, Any], config_dir: Path | None) -> list[str]:
    """The overrides that keyword arguments stand for; ConfigError for a value that is none."""
    names = setting_names(verb, config_dir)
    overrides: list[str] = []
    for name, value in settings.items():
        if names.get(name) == "groups":
            overrides += _of_group(name, value)
        else:
            overrides.append(_word(f"{names.get(name, '')}.{name}".lstrip("."), value))
    return overrides


def _of_group(group: str, value: Any) -> Iterator[str]:
    """A group by the name of an option, a class, or a mapping of either and more keys."""
    if group in SECTIONS and not isinstance(value, Mapping):
        raise ConfigError(group, value, f"a mapping of its keys, as in {group}={{...}}")
    values, prefix = dict(value) if isinstance(value, Mapping) else {"name": value}, ""
    # Under either key, as in `plan_for`. A model of transformers has a key "name" of its own.
    named = [values.pop(key) for key in (TARGET, "name") if key in values and group not in SECTIONS]
    if len(named) > 1:
        values["name"] = named[1]
    for choice in named[:1]:
        if callable(choice) or (isinstance(choice, str) and "." in choice):
            yield override(f"{group}.{TARGET}", dotted(group, choice))
            # Of a class of the user's own the configuration knows no arguments.
            prefix = "++"
        else:
            yield _word(group, choice)
    # Roles and sizes of a model are keys of the configuration, and need no plus to be added.
    for key, inner in values.items():
        plain = group == "model" and (key in SIZES or key in RULE_KEYS)
        yield from _flat(f"{'' if plain else prefix}{group}.{key}", inner)


def _flat(key: str, value: Any) -> Iterator[str]:
    """An override a leaf: what a mapping does not name stays as it was."""
    if key == "model.roles" and isinstance(value, Mapping):
        value = [f"{pattern}={role}" for pattern, role in value.items()]
    # A schedule is a name or a mapping: one takes the whole other's place.
    if isinstance(value, Mapping) and value and key != "train.schedule":
        for name, inner in value.items():
            if not (isinstance(name, str) and re.fullmatch(r"[\w-]+", name)):
                raise ConfigError(f"{key}.{name}", inner, "a key of letters, digits and _")
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield _word(key, value)


def _word(key: str, value: Any) -> str:
    """`key=value` as Hydra reads it back."""
    return f"{key}={_text(key, value)}"


def _text(key: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, str | Path):
        return override("", str(value))[1:]
    if isinstance(value, Mapping):
        pairs = (f"{_text(key, name)}: {_text(key, inner)}" for name, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple | range):
        return f"[{','.join(_text(key, entry) for entry in value)}]"
    if callable(value):
        return override("", dotted(key, value))[1:]
    raise ConfigError(key, value, "a text, a number, True, False, None, a list or a mapping")


def dotted(key: str, named: Any) -> str:
    """The dotted path of a class or a function, by which the configuration names it.

    ConfigError for one that has none: what is made within a function, a lambda, a partial, or what
    another definition of its name has replaced.
    """
    if isinstance(named, str):
        return named
    module, name = getattr(named, "__module__", ""), getattr(named, "__qualname__", "")
    path = f"{module}.{name}"
    if name.isidentifier() and vars(sys.modules.get(module, sys)).get(name) is named:
        return path
    allowed = "a class or a function at the top level of a module or a cell, by its name; "
    allowed += f'arguments of its own stand beside it: {key}={{"name": Net, "heads": 4}}'
    if isinstance(named, type) and name.isidentifier():
        allowed = f"the {name} that {module} has now: it was defined anew since. Import it again"
    if not callable(named) or not name:
        raise ConfigError(key, named, allowed)
    raise ConfigError(key, path, allowed)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class PythonCalls(Python):
    """Python's spelling, a whole call as the function that asks for it."""

    def call(self, call: Call) -> str:
        """A call of `sweeper.search`, `transfer` or `explain`; others as a shell takes them.

        In a notebook these begin with "!", by which a cell runs them.
        """
        if call.verb in ("search", "transfer", "explain") and not call.command:
            with suppress(BadInput):
                return _call(call)
        return f"{'!' * in_notebook()}{super().call(call)}"


CALLS = PythonCalls()


@contextmanager
def in_python(settings: Iterable[str] = ()) -> Iterator[None]:
    """Errors from inside name the keywords of `settings` that were given, and calls as Python's."""
    keywords = {*settings}
    try:
        yield
    except SweeperError as error:
        if isinstance(error, ConfigError):
            # `steps=30` is that of `train.steps`.
            section, _, name = error.key.rpartition(".")
            if name in keywords and section in ("model", "train", "transfer"):
                error = error.renamed(name)
            error.remedy = (spelled(error.remedy, CALLS),)
        error.args = (error.spelled(CALLS),)
        raise error from None


def _call(call: Call) -> str:
    first, arguments = list[str](), dict[str, Any]()
    for keyword in call.arguments:
        if isinstance(keyword, str):
            continue
        if keyword.name == "study":
            study = repr(keyword.value)
            first = [study if call.verb == "transfer" else f"study={study}"]
        else:
            arguments[keyword.name] = keyword.value
    overrides = [word for word in call.arguments if isinstance(word, str)]
    for parsed in parse_overrides(overrides):
        key, value = str(parsed.key_or_group), parsed.value()
        group, _, inner = key.partition(".")
        if key in SIZES or not inner:
            arguments[key] = value
        elif key == "study.name":
            first = [f"study={value!r}"]
        else:
            # optimizer=adamw and optimizer.beta2=0.95 are one mapping in Python.
            whole = arguments.get(group, {})
            whole = whole if isinstance(whole, dict) else {"name": whole}
            arguments[group] = whole | {"name" if inner == TARGET else inner: value}
    texts = [f"{name}={_shown(value)}" for name, value in arguments.items()]
    return f"sweeper.{call.verb}({', '.join([*first, *texts])})"


def _shown(value: Any) -> str:
    """A value as Python writes it; a class of the notebook's by its name there."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict) and value.keys() == {"name"}:
        return _shown(value["name"])
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_shown(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, str) and value.startswith(f"{MAIN}."):
        return value.removeprefix(f"{MAIN}.")
    return repr(str(value)) if isinstance(value, str | Path) else repr(value)
