"""The registry: names in conf/ and the classes they stand for, built from checked arguments."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import re
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from sweeper.errors import BadInput, ConfigError, MissingValue, SweeperError, key_prefix, suggest

# Which configs and studies there are: groups, options, names, read off the folders alone.
# The configs are the registry of plugins: records name a plugin by its config, not by its class,
# so that a class may be renamed. Shell completion and error messages ask here too; nothing heavy
# is imported.


OVERLAYS = ("experiment", "size")
"""Groups whose options set keys of other groups, and which may be null."""

TARGET = "_target_"
"""The key of a config that names its class."""
_TARGET_RE = re.compile(rf"^{TARGET}: *(\S+)", re.MULTILINE)
_UNLISTED_PLUGINS = {"parameterization": {"adjusted": "sweeper.scaling.relative.Adjusted"}}
"""Plugins that no user chooses, and that have no config."""


def conf_folder() -> Path:
    """The folder `conf/`: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise BadInput(f"the configs are missing: neither {package / 'conf'} nor beside {package}")


def groups(config_dir: Path | None = None) -> dict[str, list[str]]:
    """Options of every group, by name; those of the user's `config_dir` are among them.

    Folders of `config_dir` that are none of sweeper's groups are passed over.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise BadInput(f"--config-dir {config_dir} is not a folder")
    options: dict[str, set[str]] = {}
    for root in (conf_folder(), config_dir):
        if root is None:
            continue
        for path in root.glob("[!.]*/[!.]*.yaml"):
            if root != config_dir or path.parent.name in options:
                options.setdefault(path.parent.name, set()).add(path.stem)
    return {group: sorted(names) for group, names in sorted(options.items())}


def studies(root: Path) -> list[str]:
    """Names of all studies in `root`: a study has a `config.yaml`."""
    return sorted(path.parent.name for path in root.glob("[!.]*/config.yaml"))


@cache
def plugins() -> Mapping[str, Mapping[str, str]]:
    """The classes (dotted paths) of sweeper's own plugins, by group and name.

    A plugin has the name of its config. Where all configs of a group are presets of one class,
    as in `fp8`, the group's name stands first. A class is recorded by the first of its names,
    and read by any.
    """
    registry: dict[str, dict[str, str]] = {}
    for path in sorted(conf_folder().glob("*/*.yaml")):
        if target := _TARGET_RE.search(path.read_text(encoding="utf-8")):
            registry.setdefault(path.parent.name, {})[path.stem] = target[1]
    for group, classes in registry.items():
        if len(classes) > len(set(classes.values())) == 1:
            registry[group] = {group: next(iter(classes.values())), **classes}
    return {
        group: {**classes, **_UNLISTED_PLUGINS.get(group, {})}
        for group, classes in registry.items()
    }


def plugin_name(group: str, target: str) -> str:
    """The stable name of a class: sweeper's own by its config, a user's by its dotted path."""
    names = (name for name, path in plugins().get(group, {}).items() if path == target)
    return next(names, target)


def plugin_target(group: str, name: str) -> str:
    """The dotted path of a plugin's class; inverse of `plugin_name`.

    ConfigError for a name that is neither a dotted path nor in the registry.
    """
    targets = plugins().get(group, {})
    if "." not in name and name not in targets:
        allowed = f"a dotted path such as package.module.Class; {suggest(name, targets)}"
        raise ConfigError(TARGET, name, allowed)
    return targets.get(name, name)


def with_names(group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A plugin's config with the stable name in place of every class in it."""
    return _retargeted(config, lambda target: plugin_name(group, target))


def with_targets(group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `with_names`; ConfigError as `plugin_target`."""
    return _retargeted(config, lambda name: plugin_target(group, name))


def _retargeted(config: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """`config` with its class and those of the plugins within it renamed."""

    def renamed(key: object, value: Any) -> Any:
        if isinstance(value, Mapping):
            return _retargeted(value, rename)
        if isinstance(value, list | tuple):
            return [renamed(None, item) for item in value]
        return rename(value) if key == TARGET and isinstance(value, str) else value

    return {key: renamed(key, value) for key, value in config.items()}


# Build a plugin from its config: `_target_` names the class, the other keys its arguments.


UNKNOWN_KEY = "there is no such key"
_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number of at most 63 bits",
    float: "a finite number",
    str: "a text",
    bool: "true or false",
    type(None): "null",
}


def import_target(target: object, key: str = "_target_") -> Callable[..., Any]:
    """The class or function that the dotted path `target` names; ConfigError when there is none."""
    if not isinstance(target, str) or "." not in target:
        raise ConfigError(key, target, "a dotted path such as package.module.Class")
    module_name, _, name = target.rpartition(".")
    with user_code(key, target, "a class in a module that can be imported; see PYTHONPATH"):
        module = importlib.import_module(module_name)
    attribute = getattr(module, name, None)
    if not callable(attribute):
        raise ConfigError(key, target, f"a class or a function of the module {module_name}")
    return typing.cast(Callable[..., Any], attribute)


@contextmanager
def user_code(key: str, target: object, allowed: str) -> Iterator[None]:
    """Turn whatever a user's own code raises into a ConfigError that says what and where."""
    try:
        yield
    except SweeperError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, ImportError) else f", at {last.filename}:{last.lineno}"
        first = next(iter(str(error).splitlines()), "")
        reason = f"{type(error).__name__}: {first[:300]}{place}"
        if isinstance(error, SystemExit):
            allowed += "; what a script runs belongs under if __name__ == '__main__':"
        raise ConfigError(key, target, f"{allowed} ({reason})") from error


def build_plugin(config: Mapping[str, Any], offered: Mapping[str, Any] | None = None) -> Any:
    """Call `config["_target_"]` with the other keys, each checked against its annotation.

    `offered` are further arguments, given only if the target takes them. ConfigError names the
    key that is unknown, missing, of the wrong type or refused by the target, or `_target_` when
    the target cannot be imported. Whatever else the target raises passes.
    """
    target = import_target(config.get("_target_"))
    return call_checked(target, {n: v for n, v in config.items() if n != "_target_"}, offered or {})


def call_checked(
    target: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any]
) -> Any:
    """`target(**given)` with those of `offered` that it takes; see `build_plugin`."""
    parameters = arguments(target)
    has_kwargs = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    extra = {n: v for n, v in offered.items() if n in parameters or has_kwargs}
    hints, checked = _hints(target), {}
    for name, value in given.items():
        if name in extra:
            raise ConfigError(name, value, "it follows from other settings and cannot be given")
        if name not in parameters and not has_kwargs:
            choices = set(parameters) - extra.keys()
            raise ConfigError(name, value, f"{UNKNOWN_KEY}; {suggest(name, choices)}")
        checked[name] = check_type(name, value, hints.get(name, Any))
    for name, parameter in parameters.items():
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not variadic and name not in checked | extra:
            raise MissingValue(name)
    return target(**(extra | checked))


def arguments(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The target's arguments; ConfigError when they cannot be inspected."""
    try:
        return inspect.signature(target).parameters
    except ValueError as error:
        raise ConfigError("_target_", str(target), "a class that tells its arguments") from error


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Type annotations of the target's arguments; empty when they cannot be evaluated.

    A dataclass inherits fields from other modules, whose annotations mean something only there:
    those of the class are evaluated each in its own module, those of `__init__` are not.
    """
    sources = (target, target.__init__) if inspect.isclass(target) else (target,)
    hints: dict[str, Any] = {}
    for source in sources:
        with suppress(NameError, TypeError):
            hints |= typing.get_type_hints(source)
    return hints


def check_type(key: str, value: Any, hint: Any) -> Any:
    """`value` as the annotation `hint` wants it, records and tuples built from plain JSON.

    ConfigError when no member of the hint takes it. Hints that are not understood pass.
    """
    options = _options(hint)
    for option in options:
        if option is Path and isinstance(value, str):
            return Path(value)
        if dataclasses.is_dataclass(option) and isinstance(value, Mapping):
            with key_prefix(key):
                return call_checked(typing.cast(Callable[..., Any], option), value, {})
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            member = typing.get_args(option)[0]
            return tuple(check_type(f"{key}[{i}]", v, member) for i, v in enumerate(value))
    if any(_accepts(option, value) for option in options):
        wants_float = float in options and isinstance(value, int) and not isinstance(value, bool)
        return float(value) if wants_float and int not in options else value
    raise ConfigError(key, value, " or ".join(_describe(option) for option in options))


def _accepts(option: Any, value: Any) -> bool:
    """Whether `value` is one of `option`; a hint that is not understood accepts anything."""
    if typing.get_origin(option) is typing.Literal:
        return value in typing.get_args(option)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if option is float:
        return _accepts(int, value) or (isinstance(value, float) and math.isfinite(value))
    if option in (str, bool):
        return isinstance(value, option)
    if option in (type(None), None):
        return value is None
    return not (dataclasses.is_dataclass(option) or typing.get_origin(option) is tuple)


def _describe(option: Any) -> str:
    """What a hint allows, in words."""
    if typing.get_origin(option) is typing.Literal:
        return ", ".join(str(value) for value in typing.get_args(option))
    if typing.get_origin(option) is tuple:
        return f"a list, each {_describe(typing.get_args(option)[0])}"
    if dataclasses.is_dataclass(option):
        fields = ", ".join(field.name for field in dataclasses.fields(option))
        return f"a mapping with {fields}"
    return _TYPE_NAMES.get(option, str(option))


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.get_args(hint)
    return (hint,)
