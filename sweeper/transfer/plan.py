"""The plan: what every parameter of the target model is given, beside the base model.

Reading a plan needs no torch; the two methods that act on a module import it when called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.errors import BadInput, ConfigError
from sweeper.plugin import call_checked
from sweeper.scaling.prescription import AbsorbedParam, Prescription, absorb_multiplier
from sweeper.scaling.spec import ParamSpec, Update
from sweeper.transfer.ladder import Size
from sweeper.transfer.needs import needs
from sweeper.trial import PlainHps, PluginSpec, encode

if TYPE_CHECKING:
    from torch import nn

    from sweeper.training.prepare import PreparedSpec

PLAN_VERSION = 2
"""Raised when `plan.json` changes in a way that old readers would misread."""


@dataclass(frozen=True, kw_only=True)
class PlannedParameter:
    """A parameter of the target model: what it is, and its numbers at base and at target.

    `update` is how the optimizer's updates of it scale; see `scaling.spec.Update`.
    """

    name: str
    role: str
    init: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    target: Prescription
    base: Prescription
    update: str = Update.SIGN

    def absorbed(self) -> AbsorbedParam:
        """The target's settings with the multiplier absorbed by init, learning rate and eps."""
        return absorb_multiplier(
            self.target, Update(self.update), name=self.name, shape=self.shape, init=self.init
        )


@dataclass(frozen=True, kw_only=True)
class TransferPlan:
    """Everything that training the target needs, keyed by parameter name.

    `operations` are the factors of attention, activation, residual and loss at the target.
    `source` says which study, configuration and runs the hyperparameters (`hps`, not
    logarithms) came from. `parameterization` and `optimizer` are named as by `catalog.plugins`.
    `needs` says in words what a plain model that uses the plan must do beyond `init_` and
    `param_groups`.
    """

    base: Size
    target: Size
    parameterization: str
    hps: PlainHps
    parameters: tuple[PlannedParameter, ...]
    operations: Mapping[str, Mapping[str, float]]
    source: Mapping[str, Any]
    optimizer: PluginSpec | None = None
    needs: tuple[str, ...] = ()
    version: int = PLAN_VERSION

    @classmethod
    def load(cls, path: str | Path) -> TransferPlan:
        """The plan in the file `path`, or in `plan.json` of the folder `path`.

        BadInput for a file that cannot be read, or is no plan of this version of sweeper.
        """
        file = Path(path).expanduser()
        file = file / "plan.json" if file.is_dir() else file
        try:
            record = json.loads(file.read_text())
        except OSError as error:
            raise BadInput(f"{file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise BadInput(f"{file} is no JSON: {error}") from error
        try:
            return cls.from_json(record)
        except BadInput as error:
            raise BadInput(f"{file} is no plan: {error}") from error

    @classmethod
    def from_json(cls, record: Any) -> TransferPlan:
        """Inverse of `to_json`; BadInput says what does not belong."""
        version = record.get("version") if isinstance(record, dict) else None
        if version != PLAN_VERSION:
            raise BadInput(f"its version is {version!r}, and this sweeper reads {PLAN_VERSION}")
        plan: TransferPlan = call_checked(cls, record, {})
        for parameter in plan.parameters:
            if parameter.update not in list(Update):
                raise ConfigError("update", parameter.update, ", ".join(Update))
            if not (parameter.target.multiplier > 0 and parameter.target.lr > 0):
                raise BadInput(f"{parameter.name}: multiplier and lr must be positive")
        return plan

    def absorbed(self) -> list[AbsorbedParam]:
        """Every parameter's settings for a plain forward pass."""
        return [parameter.absorbed() for parameter in self.parameters]

    def init_(self, model: nn.Module, seed: int = 0) -> nn.Module:
        """Draw the weights of `model` in place, multipliers absorbed, and return it.

        A value depends on `seed` and the parameter's name alone: not on the order of modules,
        on sharding (DTensors get their own part) or on what was drawn before. After the meta
        device, call `model.to_empty` first and mend the model's own buffers. Names may have the
        prefixes of torch.compile, DDP and FSDP. BadInput lists parameters that do not match.
        """
        from sweeper.training import apply

        apply.init_(self.absorbed(), model, seed)
        return model

    def param_groups(self, model: nn.Module, *, lr_scale: float = 1.0) -> list[dict[str, Any]]:
        """Groups for `torch.optim.AdamW(plan.param_groups(model))` or any torch optimizer.

        A group has `params`, a `name` for people, and `lr` (times `lr_scale`), `eps` and
        `weight_decay`; parameters of equal settings share one. The plan's decay is independent
        of the learning rate: the share of a weight that a step removes. torch's decoupled decay
        removes lr x weight_decay, so the group's `weight_decay` is decay / lr, and `lr_scale`
        leaves the decay alone. A scheduler scales both, as here; it keeps all ratios. L2 decay
        (torch.optim.Adam, or SGD with momentum) is something else; see `needs`. After
        `fully_shard`, call this anew: it replaces parameters. BadInput as `init_`.
        """
        from sweeper.training import apply

        return apply.param_groups(self.absorbed(), model, lr_scale)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in `plan.json`."""
        record: dict[str, Any] = encode(asdict(self))
        return record


def make_plan(
    prepared: PreparedSpec,
    base: Size,
    target: Size,
    hps: PlainHps,
    source: Mapping[str, Any],
) -> TransferPlan:
    """The plan of what was prepared at `target`, for hyperparameters `hps`."""
    parameters = tuple(_planned(prepared, spec, hps) for spec in prepared.specs)
    operations = {op.name: prepared.scheme.scale_op(op, hps) for op in prepared.scaled_ops}
    multipliers = {p.name: (p.target.multiplier, p.target.backward_multiplier) for p in parameters}
    return TransferPlan(
        base=base,
        target=target,
        parameterization=prepared.spec.parameterization.name,
        hps=hps,
        parameters=parameters,
        operations=operations,
        source=dict(source),
        optimizer=prepared.spec.optimizer,
        needs=tuple(
            needs(
                prepared.scaled_ops,
                operations,
                multipliers,
                unit_scaled=prepared.scheme.unit_scaled,
                decay=any(p.target.weight_decay for p in parameters),
            )
        ),
    )


def _planned(prepared: PreparedSpec, spec: ParamSpec, hps: PlainHps) -> PlannedParameter:
    return PlannedParameter(
        name=spec.name,
        role=str(spec.role),
        init=spec.init,
        shape=spec.shape,
        base_shape=spec.base_shape,
        fan_in=spec.fan_in,
        fan_out=spec.fan_out,
        target=prepared.prescription(spec, hps),
        base=prepared.prescription(spec.at_base(), hps),
        update=prepared.optimizer.kind(spec),
    )
