"""Specifications of trials from nested configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from sweeper.classifier.classify import Inputs, compare
from sweeper.errors import ConfigError
from sweeper.records import call_checked
from sweeper.registry import TARGET, with_names
from sweeper.scaling.spec import ParamSpec, Role
from sweeper.trial import PluginSpec, TrainSettings, TrialSpec

Build = Callable[[int, int], nn.Module]
"""Makes the model of a given width and depth."""
DEFAULTS: Mapping[str, Any] = {
    "parameterization": {TARGET: "sweeper.scaling.relative.Standard"},
    "model": {TARGET: "sweeper.models.llama.Llama"},
    "optimizer": {TARGET: "sweeper.engine.optimizers.first_order.AdamW"},
    "data": {},
    "train": {},
}


def spec_of(tree: Mapping[str, Any] | None = None) -> TrialSpec:
    """The specification that a configuration describes; what it leaves out is some default.

    ConfigError names a key of `train` that is refused.
    """
    parts = {**DEFAULTS, **(tree or {})}
    model = {"width": 8, "depth": 2, **parts["model"]}
    width, depth = model.pop("width"), model.pop("depth")
    base = parts.get("base", {"width": width, "depth": depth})
    train = {"steps": 10, "batch_size": 1, "seq_len": 1, **parts["train"]}
    try:
        settings = call_checked(TrainSettings, train, {})
    except ConfigError as error:
        raise error.below("train") from error
    return TrialSpec(
        runner={"name": "engine", "numerics": 0},
        parameterization=_plugin("parameterization", parts["parameterization"]),
        model=_plugin("model", {**DEFAULTS["model"], **model}),
        width=width,
        depth=depth,
        base_width=base["width"],
        base_depth=base["depth"],
        optimizer=_plugin("optimizer", parts["optimizer"]),
        data=parts["data"],
        train=settings,
        fp8=_plugin("fp8", parts["fp8"]) if "fp8" in parts else None,
    )


def _plugin(group: str, config: Mapping[str, Any]) -> PluginSpec:
    named = with_names(group, config)
    return PluginSpec(name=named.pop(TARGET), arguments=named)


def specs_between(
    build: Build,
    *,
    base: tuple[int, int],
    target: tuple[int, int],
    inputs: Inputs = None,
    roles: Mapping[str, Role | str] | None = None,
) -> list[ParamSpec]:
    """The specs of `compare`, of a model that is built from its width and depth."""
    return compare(
        lambda width, depth: build(width, depth),
        base={"width": base[0], "depth": base[1]},
        target={"width": target[0], "depth": target[1]},
        inputs=inputs,
        roles=roles,
    ).specs
