"""The search space that a configuration describes, and what makes its plugins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.catalog import TARGET, plugin_name
from sweeper.errors import ConfigError, key_prefix, suggest
from sweeper.plugin import build_plugin, call_checked, user_code
from sweeper.scaling.spec import Parameterization
from sweeper.trial import Axis, Choice, Space


def read_space(parameterization: Mapping[str, Any], optional_names: Sequence[str]) -> Space:
    """The search space of a parameterization's config: every hyperparameter it has, no other.

    `optional_names`, factors on settings of the training, may be in any space and need not be.
    """
    space = parameterization.get("space")
    if not isinstance(space, Mapping):
        raise ConfigError("space", space, "a mapping from hyperparameter to {low, high, default}")
    config = {key: value for key, value in parameterization.items() if key != "space"}
    checked = checked_plugin(config, Parameterization)
    required = checked.hyperparameters or _own_names(space)
    choices = (*required, *optional_names)
    for name in space:
        if name not in choices:
            allowed = f"no such name; {suggest(name, choices)}"
            raise ConfigError(f"space.{name}", space[name], allowed)
    names = (*required, *(name for name in optional_names if name in space))
    own = not checked.hyperparameters
    return {name: _axis(f"space.{name}", space.get(name), own=own) for name in names}


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


def _axis(key: str, value: Any, *, own: bool) -> Axis:
    if not isinstance(value, Mapping):
        choices = ", or {choices, default}" if own else ""
        raise ConfigError(key, value, f"a mapping {{low, high, default}}, in log2{choices}")
    if "choices" in value:
        if not own or key == "space.eta":
            raise ConfigError(f"{key}.choices", value["choices"], "a range {low, high, default}")
        return _choices(key, value)
    with key_prefix(key):
        axis: Axis = call_checked(Axis, value, {})
    return axis


def _choices(key: str, value: Mapping[str, Any]) -> Axis:
    """A list of choices as an axis over its places; the default is the first where none is said."""
    if other := sorted(set(value) - {"choices", "default"}):
        raise ConfigError(f"{key}.{other[0]}", value[other[0]], "choices and default alone")
    choices = value["choices"]
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise ConfigError(f"{key}.choices", choices, "a list of values")
    for choice in choices:
        if not isinstance(choice, Choice) or choice in (math.inf, -math.inf) or choice != choice:
            raise ConfigError(f"{key}.choices", choice, "texts, finite numbers, true or false")
    kinds = [(type(choice), choice) for choice in choices]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"{key}.choices", list(choices), "each value once")
    default = value.get("default", choices[0])
    if (type(default), default) not in kinds:
        raise ConfigError(f"{key}.default", default, f"one of {list(choices)}")
    place = float(kinds.index((type(default), default)))
    return Axis(low=0.0, high=len(choices) - 1.0, default=place, choices=tuple(choices))


def checked_plugin(config: Mapping[str, Any], kind: type) -> Any:
    """Build a plugin; ConfigError for one that lacks a member of the protocol `kind`."""
    with user_code("_target_", config.get("_target_"), "a class that takes these values"):
        plugin = build_plugin(config)
    members = {name for name in {**vars(kind), **kind.__annotations__} if not name.startswith("_")}
    if lacking := sorted(name for name in members if not hasattr(plugin, name)):
        allowed = f"a class with {', '.join(sorted(members))}; this has no {', no '.join(lacking)}"
        raise ConfigError("_target_", config["_target_"], allowed)
    return plugin
