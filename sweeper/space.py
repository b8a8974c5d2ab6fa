"""The search space that a configuration describes, and what makes its plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.catalog import TARGET, plugin_name
from sweeper.errors import ConfigError, key_prefix, suggest
from sweeper.plugin import build_plugin, call_checked, user_code
from sweeper.scaling.spec import Parameterization
from sweeper.trial import Axis, Space


def read_space(parameterization: Mapping[str, Any], optional_names: Sequence[str]) -> Space:
    """The search space of a parameterization's config: every hyperparameter it has, no other.

    `optional_names`, factors on settings of the training, may be in any space and need not be.
    """
    space = parameterization.get("space")
    if not isinstance(space, Mapping):
        raise ConfigError("space", space, "a mapping from hyperparameter to {low, high, default}")
    config = {key: value for key, value in parameterization.items() if key != "space"}
    required = checked_plugin(config, Parameterization).hyperparameters
    if not required:  # a command's own
        required = _own_names(space)
    choices = (*required, *optional_names)
    for name in space:
        if name not in choices:
            allowed = f"no such name; {suggest(name, choices)}"
            raise ConfigError(f"space.{name}", space[name], allowed)
    names = (*required, *(name for name in optional_names if name in space))
    return {name: _axis(f"space.{name}", space.get(name)) for name in names}


def _own_names(space: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a command's own hyperparameters, the learning rate first."""
    for name in space:
        if not (isinstance(name, str) and name.isidentifier()):
            raise ConfigError("space", name, "names of letters, digits and underscores")
    if "eta" not in space:
        raise ConfigError("space", sorted(space), "eta among them: here that is the learning rate")
    return ("eta", *(name for name in space if name != "eta"))


def is_own(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration's parameterization is `own`."""
    return plugin_name("parameterization", str(raw["parameterization"].get(TARGET))) == "own"


def _axis(key: str, value: Any) -> Axis:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "a mapping {low, high, default}, in log2")
    with key_prefix(key):
        axis: Axis = call_checked(Axis, value, {})
    return axis


def checked_plugin(config: Mapping[str, Any], kind: type) -> Any:
    """Build a plugin; ConfigError for one that lacks a member of the protocol `kind`."""
    with user_code("_target_", config.get("_target_"), "a class that takes these values"):
        plugin = build_plugin(config)
    members = {name for name in {**vars(kind), **kind.__annotations__} if not name.startswith("_")}
    if lacking := sorted(name for name in members if not hasattr(plugin, name)):
        allowed = f"a class with {', '.join(sorted(members))}; this has no {', no '.join(lacking)}"
        raise ConfigError("_target_", config["_target_"], allowed)
    return plugin
