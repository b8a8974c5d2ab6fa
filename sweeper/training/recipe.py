"""From a trial's plain JSON to what its training needs: model, scales, optimizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from sweeper.errors import ConfigError
from sweeper.models.classify import sites, specs_between
from sweeper.plugs import build, call
from sweeper.scaling.spec import Parameterization, ParamScale, ParamSpec, Site
from sweeper.training.optimizer import Optimizer
from sweeper.training.settings import TrainSettings


@dataclass(frozen=True)
class Recipe:
    """Everything of a setup that all of its trials share."""

    setup: Mapping[str, Any]
    scheme: Parameterization
    optimizer: Optimizer
    train: TrainSettings
    specs: tuple[ParamSpec, ...]
    sites: tuple[Site, ...]

    def model(self) -> nn.Module:
        """The module at the setup's size, on the default device, its weights not drawn."""
        size = self.setup["model"]
        return build_model(self.setup, self.scheme.unit_scaled, size["width"], size["depth"])

    def scales(self, values: Mapping[str, float]) -> dict[str, ParamScale]:
        """The scheme's prescription for every parameter, by name, given hyperparameters."""
        return {
            spec.name: self.scheme.scale(spec, values, self.optimizer.update_scale)
            for spec in self.specs
        }

    def buffers(self, values: Mapping[str, float]) -> dict[str, float]:
        """Values of the model's scale buffers, by full name."""
        found: dict[str, float] = {}
        for name, scale in self.scales(values).items():
            owner = name.rpartition(".")[0]
            if scale.multiplier != 1.0:
                found[f"{owner}.multiplier"] = scale.multiplier
            if scale.backward is not None:
                found[f"{owner}.backward_multiplier"] = scale.backward
        for site in self.sites:
            factors = self.scheme.site(site, values)
            found |= {f"{site.name}.{buffer}": value for buffer, value in factors.items()}
        return found

    def parameters(self) -> int:
        """Number of weights of one trial."""
        return sum(_product(spec.shape) for spec in self.specs)

    def flops(self) -> float:
        """Floating-point operations of one trial (Kaplan et al., arXiv:2001.08361).

        Per token 6 for every weight of a matrix product, and 12 x width x sequence for the
        attention of a layer.
        """
        tokens = self.train.steps * self.train.batch_size * self.train.seq_len
        weights = sum(_product(s.shape) for s in self.specs if s.role != "embedding")
        size = self.setup["model"]
        attention = 12 * size["width"] * self.train.seq_len * size["depth"]
        return float(tokens * (6 * weights + attention))


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def build_model(setup: Mapping[str, Any], unit: bool, width: int, depth: int) -> nn.Module:
    """The setup's model at another size; ConfigError names a `model.` key that is refused."""
    offered = {
        "classes": setup["data"]["classes"],
        "seq_len": setup["train"]["seq_len"],
        "base_depth": setup["base"]["depth"],
        "unit": unit,
    }
    try:
        model = build({**setup["model"], "width": width, "depth": depth}, offered)
    except ConfigError as error:
        raise error.below("model") from error
    if not isinstance(model, nn.Module):
        raise ConfigError("model._target_", setup["model"]["_target_"], "an nn.Module")
    return model


def prepare(setup: Mapping[str, Any]) -> Recipe:
    """Build and classify what `setup` describes; ConfigError names the key that is refused."""
    return _prepare(json.dumps(setup, sort_keys=True))


@lru_cache(maxsize=64)
def _prepare(text: str) -> Recipe:
    setup = json.loads(text)
    parts = {}
    for name in ("parameterization", "optimizer"):
        try:
            parts[name] = build(setup[name])
        except ConfigError as error:
            raise error.below(name) from error
    try:
        train = call(TrainSettings, setup["train"], {})
    except ConfigError as error:
        raise error.below("train") from error
    scheme: Parameterization = parts["parameterization"]
    base = (setup["base"]["width"], setup["base"]["depth"])
    target = (setup["model"]["width"], setup["model"]["depth"])
    specs = specs_between(
        lambda width, depth: build_model(setup, scheme.unit_scaled, width, depth),
        base=base,
        target=target,
    )
    with torch.device("meta"):
        found = sites(build_model(setup, scheme.unit_scaled, *target))
    return Recipe(setup, scheme, parts["optimizer"], train, tuple(specs), tuple(found))
