"""All that a plan asks of a model: its parameters, its operations, and what stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sweeper.models.attention_watch import AttentionWatch, SeenAttention
from sweeper.models.classifier import Build, compare, scaled_ops
from sweeper.models.initial_values import special_parameters
from sweeper.scaling.patterns import matching
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp
from sweeper.training.architecture import overridden


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """A model at its target, beside its base: parameters, scalable operations, attention."""

    specs: tuple[ParamSpec, ...]
    scaled_ops: tuple[ScaledOp, ...]
    attentions: frozenset[SeenAttention]
    cautions: tuple[str, ...] = ()


def read_model(
    build: Build,
    base: tuple[int, int],
    target: tuple[int, int],
    *,
    inputs: Any = None,
    roles: Mapping[str, Role | str] | None = None,
    keep_init: Iterable[str] = (),
    frozen: Iterable[str] = (),
) -> ModelReading:
    """Read `build(width, depth)` between two sizes, as `compare`.

    Parameters that match a pattern of `keep_init` keep their own initial values, and so do those
    whose values mean something: the model of the base's width is built on the CPU to see them.
    Frozen are those that match a pattern of `frozen`, and those that the model itself does not
    train. ConfigError names a pattern that matches nothing.
    """
    watch = AttentionWatch()
    with watch:
        compared = compare(
            lambda width, depth: build(width, depth),
            base={"width": base[0], "depth": base[1]},
            target={"width": target[0], "depth": target[1]},
            inputs=inputs,
            roles=roles,
        )
    specs = compared.specs
    model = _built(build, target)
    untrained = {
        name.replace("_orig_mod.", "")
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    }
    names = [spec.name for spec in specs]
    kept = matching("keep_init", keep_init, names)
    kept |= special_parameters(
        lambda: build(base[0], target[1]), {spec.name: spec.init for spec in specs}
    )
    untrained |= matching("frozen", frozen, names)
    return ModelReading(
        specs=tuple(overridden(specs, kept, untrained)),
        scaled_ops=(*scaled_ops(model), *compared.tied),
        cautions=tuple(compared.cautions),
        attentions=frozenset(watch.seen),
    )


def _built(build: Build, target: tuple[int, int]) -> nn.Module:
    """The model without memory, or with it where its own code needs values."""
    try:
        with torch.device("meta"):
            return build(*target)
    except Exception:
        return build(*target)
