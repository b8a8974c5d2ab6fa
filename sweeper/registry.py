"""The registry: names in conf/ and the classes they stand for, built from checked arguments.

The configs are the registry: records name a plugin by its config, not by its class, so that a class
may be renamed. Which groups, options and studies there are is read off the folders alone: shell
completion and error messages ask here too, and nothing heavy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sweeper.errors import BadInput, ConfigError, Keyword, suggest
from sweeper.gone import gone
from sweeper.records import call_checked, import_target

OVERLAYS = ("experiment", "size")
"""Groups whose options set keys of other groups, and which may be null."""

TARGET = "_target_"
"""The key of a config that names its class."""
_TARGET_RE = re.compile(rf"^{TARGET}: *(\S+)", re.MULTILINE)


def conf_folder() -> Path:
    """The folder `conf/`: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "parameterization").is_dir():
            return folder
    raise BadInput(f"the configs are missing: neither {package / 'conf'} nor beside {package}")


def groups(config_dir: Path | None = None) -> dict[str, list[str]]:
    """Options of every group, by name; those of the user's `config_dir` are among them.

    Folders of `config_dir` that are none of sweeper's groups are passed over.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise BadInput(Keyword("config_dir", str(config_dir)), " is not a folder")
    options: dict[str, set[str]] = {}
    # Ours first: they say which groups there are, and a user's folder may hold anything beside.
    for root in (conf_folder(), config_dir):
        if root is None:
            continue
        for path in root.glob("[!.]*/[!.]*.yaml"):
            if root != config_dir or path.parent.name in options:
                options.setdefault(path.parent.name, set()).add(path.stem)
    return {group: sorted(names) for group, names in sorted(options.items())}


@cache
def plugins() -> Mapping[str, Mapping[str, str]]:
    """The classes (dotted paths) of sweeper's own plugins, by group and name.

    A plugin has the name of its config. Where all configs of a group are presets of one class,
    as in `fp8`, the group's name stands first. A class is recorded by the first of its names,
    and read by any.
    """
    registry: dict[str, dict[str, str]] = {}
    for path in sorted(conf_folder().glob("*/*.yaml")):
        # One regular expression in place of a YAML parser, since completion waits for this. A class
        # within a config is indented, and so no match.
        if target := _TARGET_RE.search(path.read_text(encoding="utf-8")):
            registry.setdefault(path.parent.name, {})[path.stem] = target[1]
    # Presets differ in their arguments alone, which a record has beside the name.
    for group, classes in registry.items():
        if len(classes) > len(set(classes.values())) == 1:
            registry[group] = {group: next(iter(classes.values())), **classes}
    return registry


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
        went = gone(f"{group}={name}") or f"; {suggest(name, targets)}"
        allowed = f"a dotted path such as package.module.Class{went}"
        raise ConfigError(TARGET, name, allowed)
    return targets.get(name, name)


def takes_eps(optimizer: str, arguments: Mapping[str, Any]) -> bool:
    """Whether eps plays a part in an optimizer of this name: its config says so, by having it.

    One that no config describes is taken to have one. Steps by atan2 have none.
    """
    has = _optimizers_with_eps().get(optimizer, arguments.get("eps", True))
    return bool(has) and not arguments.get("atan2")


@cache
def _optimizers_with_eps() -> Mapping[str, bool]:
    configs = (conf_folder() / "optimizer").glob("*.yaml")
    return {path.stem: "\neps:" in path.read_text(encoding="utf-8") for path in configs}


def with_names(group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A plugin's config with the stable name in place of every class in it."""
    return _retargeted(config, lambda target: plugin_name(group, target))


def with_targets(group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `with_names`; ConfigError as `plugin_target`."""
    return _retargeted(config, lambda name: plugin_target(group, name))


def _retargeted(config: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    def renamed(key: object, value: Any) -> Any:
        if isinstance(value, Mapping):
            return _retargeted(value, rename)
        if isinstance(value, list | tuple):
            return [renamed(None, item) for item in value]
        return rename(value) if key == TARGET and isinstance(value, str) else value

    return {key: renamed(key, value) for key, value in config.items()}


# Who may name code. To look a class up is to run its module, and to build it runs what it says. A
# folder of studies may come from anywhere, so that its records name no code: during a command, what
# is built is sweeper's own, or was named by the command line, its --config-dir, or --trust.


_named: set[str] | None = None
"""Dotted paths that the running command names; None: no command runs, and a program's own calls
build what they like."""


@contextmanager
def only_named() -> Iterator[None]:
    """Build nothing in here but plugins of conf/ and what `name_classes` was told of in here."""
    global _named
    outer, _named = _named, set()
    try:
        yield
    finally:
        _named = outer


def name_classes(targets: Iterable[str]) -> None:
    """Let the running command build these, by dotted path: it names them itself."""
    if _named is not None:
        _named.update(targets)


def classes_in(config: object) -> list[str]:
    """Every class that a configuration names, plugins within plugins included, by dotted path."""
    if isinstance(config, Mapping):
        here = config.get(TARGET)
        inner = [target for value in config.values() for target in classes_in(value)]
        return [here, *inner] if isinstance(here, str) else inner
    if isinstance(config, list | tuple):
        return [target for value in config for target in classes_in(value)]
    return []


def classes_of_configs(config_dir: Path | None) -> list[str]:
    """Every class that the user's own configs name."""
    paths = () if config_dir is None else config_dir.glob("[!.]*/[!.]*.yaml")
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    return [target for text in texts for target in re.findall(rf"{TARGET}: *(\S+)", text)]


@cache
def _shipped() -> frozenset[str]:
    return frozenset(target for group in plugins().values() for target in group.values())


_OPTUNA_RE = re.compile(r"optuna\.samplers\.[A-Z]\w*Sampler")


def is_shipped(target: str) -> bool:
    """Whether a dotted path is that of a plugin in conf/, or a sampler of Optuna's own."""
    return target in _shipped() or _OPTUNA_RE.fullmatch(target) is not None


def import_plugin(target: object, key: str = TARGET) -> Callable[..., Any]:
    """The class or function of a dotted path; ConfigError when there is none, or none may be run.

    A path that nobody named who may is refused before its module is imported, which runs it.
    """
    if isinstance(target, str) and not (_named is None or target in _named or is_shipped(target)):
        allowed = (
            "a name of conf/, or a class that this command line or its ",
            Keyword("config_dir", ...),
            " names: what a study alone names is not run",
        )
        raise ConfigError(key, target, allowed)
    try:
        return import_target(target, key)
    except ConfigError as error:
        # A class of ours went, or moved.
        package, _, name = str(target).rpartition(".")
        moved = [path for path in _shipped() if path.endswith(f".{name}")]
        instead = gone(name) or "".join(f"; did you mean {path}?" for path in moved[:1])
        if not instead or package.partition(".")[0] != "sweeper":
            raise
        raise ConfigError(key, target, f"{error.allowed}{instead}") from error.__cause__


def build_plugin(
    config: Mapping[str, Any],
    offered: Mapping[str, Any] | None = None,
    protocol: type | None = None,
) -> Any:
    """Call `config["_target_"]` with the other keys, each checked against its annotation.

    `offered` are further arguments, given only if the target takes them. ConfigError names the
    key that is unknown, missing, of the wrong type or refused by the target, or `_target_` when
    the target cannot be imported, or lacks a member of the `protocol`: a class that has not all its
    methods is never called. Whatever else the target raises passes.
    """
    target = import_plugin(config.get(TARGET))
    arguments = {name: value for name, value in config.items() if name != TARGET}
    if protocol is None:
        return call_checked(target, arguments, offered or {})
    names = sorted(
        name for name in {**vars(protocol), **protocol.__annotations__} if not name.startswith("_")
    )

    def check(lacking: list[str]) -> None:
        if lacking:
            group, name = protocol.__name__.lower(), target.__name__.lower()
            own = f"{group}={name}, which is sweeper's own, or " * (
                name in plugins().get(group, ())
            )
            allowed = f"{own}a class with {', '.join(names)}; this has no {', no '.join(lacking)}"
            raise ConfigError(TARGET, config[TARGET], allowed)

    if not isinstance(target, type):
        raise ConfigError(TARGET, config[TARGET], f"a class with {', '.join(names)}; this is none")
    # What is no method may be set by __init__ alone, and is looked for afterwards.
    methods = [name for name in names if callable(getattr(protocol, name, None))]
    if not all(callable(getattr(target, name, None)) for name in methods):
        fields = {name for kind in target.__mro__ for name in vars(kind).get("__annotations__", ())}
        check([name for name in names if name not in fields and not hasattr(target, name)])
    plugin = call_checked(target, arguments, offered or {})
    check([name for name in names if not hasattr(plugin, name)])
    return plugin
