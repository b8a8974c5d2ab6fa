"""Gammas: constants on the learning rates of groups of parameters, under every parameterization.

Everett et al. (arXiv:2407.05872, section 4.2) give every layer type a constant, tuned at the base
and kept at all widths: `eta_l = eta * gamma_l * m^-c_l`. The power of m is the parameterization's
and says nothing of the constant before it, so that one factor on what it prescribes serves all of
them; `prescription.prescription_of` applies it. A parameter's constant is the product of all that
it belongs to. At 1, log2 0, every one of them changes nothing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from sweeper.errors import ConfigError
from sweeper.scaling.spec import (
    LAYER_GAMMAS,
    NUMBER,
    Parameterization,
    ParamSpec,
    Role,
    layer_of,
    matching,
    with_layer,
)
from sweeper.trial import PlainHps

ADAM_GAMMA = "gamma_adam"
"""Adam's rate over eta, where an optimizer leaves to Adam what it has no update of its own for."""
GAMMAS = ("eta_emb", *LAYER_GAMMAS, "gamma_norm", "gamma_bias", ADAM_GAMMA)
"""Constants that any space may hold. Norms' gains and biases belong to the embedding's layer type,
as both contract nothing; `gamma_norm` and `gamma_bias` tell them from it, and `eta_emb` tells the
embedding from them: muP's second learning rate, as a multiple of eta."""
RELATIVE_DEPTH = re.compile(r"\s*(\d+(?:\.\d+)?)%\s*-\s*(\d+(?:\.\d+)?)%\s*")
"""A range of layers by their place, such as 0%-25%: of a target that is deeper as well."""


def groups_of(parameterization: Parameterization) -> Mapping[str, str]:
    """Groups that a configuration names, each a pattern; a class of the user's may have none."""
    groups: Mapping[str, str] = getattr(parameterization, "groups", {})
    return groups


def group_gammas(parameterization: Parameterization) -> tuple[str, ...]:
    """The constants of `groups_of`, which a space must hold."""
    return tuple(f"gamma_{name}" for name in groups_of(parameterization))


def gamma(spec: ParamSpec, hps: PlainHps) -> float:
    """The product of the constants of what the parameter is, 1 if not in `hps`; fixed has none."""
    names = [f"gamma_{spec.group}"] if spec.group else []
    match spec.role:
        case Role.EMBEDDING:
            names += ["eta_emb", "gamma_embedding"]
        case Role.VECTOR:
            names.append("gamma_embedding")
        case Role.READOUT:
            names.append("gamma_readout")
        case Role.HIDDEN | Role.DOWN | Role.UP:
            names.append("gamma_hidden")
    # Where nothing grows, as in a norm over an attention's head, a gain is still a gain.
    if spec.role is Role.VECTOR or (spec.role is Role.FIXED and len(spec.shape) <= 1):
        is_bias = spec.init == "zeros" or spec.name.rpartition(".")[2].endswith("bias")
        names.append("gamma_bias" if is_bias else "gamma_norm")
    return prod(hps.get(name, 1.0) for name in names)


def named_by_user(
    specs: tuple[ParamSpec, ...], parameterization: Parameterization
) -> tuple[ParamSpec, ...]:
    """The specs with the group and the C_G that the parameterization's patterns give them."""
    constants: Mapping[str, float] = getattr(parameterization, "constants", {})
    named = {f"constants.{pattern}": (pattern, c) for pattern, c in constants.items()}
    return _with(in_groups(specs, groups_of(parameterization)), "init_constant", named)


def in_groups(specs: tuple[ParamSpec, ...], groups: Mapping[str, str]) -> tuple[ParamSpec, ...]:
    """The specs, each with the group that its name matches; ConfigError as `members_of`."""
    check_names(groups)
    return _with(specs, "group", {f"groups.{group}": (p, group) for group, p in groups.items()})


def _with(
    specs: tuple[ParamSpec, ...], field: str, named: Mapping[str, tuple[str, str | float]]
) -> tuple[ParamSpec, ...]:
    if not named:
        return specs
    key_of = members_of(specs, {key: pattern for key, (pattern, _) in named.items()})
    values: dict[str, Any] = {name: {field: named[key][1]} for name, key in key_of.items()}
    return tuple(replace(s, **values[s.name]) if s.name in values else s for s in specs)


def members_of(specs: Sequence[ParamSpec], patterns: Mapping[str, str]) -> dict[str, str]:
    """The key of the pattern that each parameter matches, by its name.

    A pattern is of whole names, as in 'layers.*.attention.*', or a range of layers by relative
    depth, as in '0%-25%'. ConfigError for a pattern that matches nothing, and for a parameter that
    two match, here or in a deeper model: 'layers.1*' is layer 10, too.
    """
    key_of: dict[str, str] = {}
    for key, pattern in patterns.items():
        if place := RELATIVE_DEPTH.fullmatch(pattern):
            members = _between([spec.name for spec in specs], place)
            if not members:
                allowed = "a range with the middle of a layer in it; of L layers they are at "
                allowed += f"(i + 1/2) / L: {_places_text(specs)}"
                raise ConfigError(key, pattern, allowed)
        else:
            members = [*matching(key, [pattern], [spec.name for spec in specs])]
        for name in sorted(members):
            if name in key_of:
                allowed = f"no parameter twice: {name} is in {key_of[name]} too"
                raise ConfigError(key, pattern, allowed)
            key_of[name] = key
    _check_deeper([spec.name for spec in specs], patterns)
    return key_of


DEEPEST = 128
"""Layers of the deeper models, by doublings, in which patterns must not meet."""


def _check_deeper(names: Sequence[str], patterns: Mapping[str, str]) -> None:
    """ConfigError for two patterns that meet in a model of more layers alone."""
    inside = [name for name in names if layer_of(name) is not None]
    alike = [*dict.fromkeys(with_layer(name, "{}") for name in inside)]
    layers = 2 * len({layer_of(name) for name in inside})
    while alike and len(patterns) > 1 and layers <= DEEPEST:
        deeper = [name.replace("{}", str(layer)) for name in alike for layer in range(layers)]
        key_of = dict[str, str]()
        for key, pattern in patterns.items():
            place = RELATIVE_DEPTH.fullmatch(pattern)
            for name in _between(deeper, place) if place else fnmatch.filter(deeper, pattern):
                if key_of.setdefault(name, key) != key:
                    allowed = (
                        f"no parameter twice in a deeper model either: at {layers} layers {name} "
                        f"is in {key_of[name]} too. A dot ends a layer's number, as in "
                        "'layers.1.*'; ranges such as '0%-50%' and '50%-100%' meet at no depth"
                    )
                    raise ConfigError(key, pattern, allowed)
        layers *= 2


def check_names(groups: Mapping[str, str]) -> None:
    """ConfigError for a group whose constant has no name, or another's, and for no pattern."""
    for group, pattern in groups.items():
        if not (isinstance(group, str) and group.isidentifier()):
            raise ConfigError("groups", group, "names of letters, digits and underscores")
        if f"gamma_{group}" in GAMMAS:
            allowed = f"another name: gamma_{group} is the constant of a layer type"
            raise ConfigError(f"groups.{group}", pattern, allowed)
        if not isinstance(pattern, str):
            allowed = "a pattern of names, such as 'layers.0.*', or of depth, such as '0%-25%'"
            raise ConfigError(f"groups.{group}", pattern, allowed)


def _places(names: Iterable[str]) -> dict[str, float]:
    stacks: dict[str, set[int]] = {}
    inside = [(name, layer) for name in names if (layer := layer_of(name)) is not None]
    for name, layer in inside:
        stacks.setdefault(_stack(name), set()).add(int(layer))
    order = {stack: sorted(layers) for stack, layers in stacks.items()}
    return {
        name: (order[_stack(name)].index(int(layer)) + 0.5) / len(order[_stack(name)])
        for name, layer in inside
    }


def _stack(name: str) -> str:
    match = NUMBER.search(name)
    return name[: match.start()] if match else name


def _between(names: Sequence[str], place: re.Match[str]) -> list[str]:
    low, high = (float(share) / 100 for share in place.groups())
    # Half open: ranges that meet, 0%-25% and 25%-50%, share no layer.
    return [name for name, at in _places(names).items() if low <= at < high]


def _places_text(specs: Sequence[ParamSpec]) -> str:
    places = sorted({round(100 * place, 1) for place in _places(s.name for s in specs).values()})
    return ", ".join(f"{place:g}%" for place in places) or "this model has none"
