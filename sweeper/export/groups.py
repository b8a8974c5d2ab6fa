"""Trainers that take groups of parameters by patterns of their names, a class for each.

What a plan trains alike stands in one `ParamGroup`; a trainer's file lists them in its own words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from sweeper.errors import BadInput, ConfigError
from sweeper.export.exporter import (
    Exporter,
    Setting,
    as_planned,
    optimizer_choices,
    optimizer_name,
    optimizer_settings,
)
from sweeper.plan.muon_conventions import CONVENTIONS
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.scaling.spec import NUMBER, Update

ODD = re.compile(r"[\s\"'\\*?\[\]]")
"""What a name must not have: patterns stand between spaces and quotes, and some are a shell's."""


@dataclass(frozen=True, kw_only=True)
class ParamGroup:
    """Parameters of equal numbers: patterns of their names, in which * is a layer's number.

    `mean` and `std` are of the normal distribution of initial values, None where a parameter keeps
    its model's own. `weight_decay` is the share that a step removes; what is `frozen` is not
    trained. `role` is the parameters' own. `more` is for Muon's implementation in torch, by which
    the rate is over its factor of the shape.
    """

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    role: str
    mean: float | None
    std: float | None
    lr: float
    eps: float
    weight_decay: float
    frozen: bool
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def decay_over_lr(self) -> float:
        """The `weight_decay` of an optimizer, such as torch's, that removes lr x weight_decay."""
        return self.weight_decay / self.lr

    def settings(self, eps: bool) -> str:
        """Arguments of a torch group as Python; without `eps` where an optimizer takes none."""
        if self.frozen:
            return "None"
        arguments = f"lr={self.lr!r}, weight_decay={self.decay_over_lr!r}"
        arguments += "".join(f", {name}={value!r}" for name, value in self.more.items())
        return f"dict({arguments}, eps={self.eps!r})" if eps else f"dict({arguments})"

    @property
    def note(self) -> str:
        """The row for people."""
        count = len(self.names)
        update = f", {self.more['update']} updates" if self.more else ""
        return f"{self.role}, {count} parameter{'s' * (count > 1)}{update}"


def rows(
    plan: TransferPlan, settings: dict[str, Setting] | None = None, *, updates: bool = False
) -> list[ParamGroup]:
    """All parameters in rows; `settings` by name replace the plan's with multipliers absorbed.

    With `updates` they say how they are updated, where not all are alike; Muon's matrices then have
    the rates of torch's implementation.

    BadInput for a name that no pattern can say.
    """
    all_names = [parameter.name for parameter in plan.parameters]
    if odd := next((n for n in all_names if not n.isprintable() or ODD.search(n)), None):
        raise BadInput(
            f"the parameter {odd!r} cannot be written as a pattern: its name has a space, a quote, "
            "a backslash, what cannot be printed, or one of * ? [ ]"
        )
    alike: dict[tuple[object, ...], list[PlannedParameter]] = {}
    by_name = settings if settings is not None else {p.name: as_planned(p) for p in plan.parameters}
    torch_muon = CONVENTIONS["torch"]
    factors = {
        p.name: torch_muon.factor_of(p.shape, p.matrix) if p.update == Update.ORTHOGONAL else 1.0
        for p in (plan.parameters if updates and optimizer_name(plan) == "muon" else ())
    }
    several = updates and len({p.update for p in plan.parameters if not p.frozen}) > 1
    for parameter in plan.parameters:
        kind = (parameter.role, parameter.init, parameter.frozen, parameter.update)
        key = (*kind, factors.get(parameter.name), by_name[parameter.name])
        alike.setdefault(key, []).append(parameter)
    grouped = []
    for parameters in alike.values():
        first, names = parameters[0], tuple(parameter.name for parameter in parameters)
        setting, kept = by_name[first.name], first.frozen or first.init in ("kept", "norm")
        row = ParamGroup(
            patterns=patterns(names, all_names),
            names=names,
            role=first.role,
            # What the forward pass multiplies by must not be in the initial values too.
            mean=None if kept else first.absorbed().init_mean / setting.forward,
            std=None if kept else setting.init_std,
            lr=setting.lr / factors.get(first.name, 1.0),
            eps=setting.eps or 0.0,
            weight_decay=setting.weight_decay,
            frozen=first.frozen,
        )
        if several:
            muon = bool(factors) and first.update == Update.ORTHOGONAL
            more = torch_muon.matrices if muon else {}
            row = replace(row, more={"update": str(first.update), **more})
        grouped.append(row)
    return grouped


def patterns(names: Collection[str], all_names: Collection[str]) -> tuple[str, ...]:
    """Patterns that match `names` once each and no other of `all_names`.

    They do so as regular expressions and as shell patterns, in which * matches dots too. Numbers
    become * where that holds; elsewhere names stand as they are.
    """
    alike: dict[str, set[str]] = {}
    for name in names:
        alike.setdefault(NUMBER.sub("*", name), set()).add(name)
    chosen: dict[str, None] = {}
    for pattern, members in alike.items():
        # A shell's * also matches "1.mlp.2": a pattern that catches more is not used.
        matched = {name for name in all_names if fnmatchcase(name, pattern)}
        chosen.update(dict.fromkeys([pattern] if matched == members else sorted(members)))
    return tuple(chosen)


@dataclass(frozen=True, kw_only=True)
class Pytorch(Exporter):
    """`init_(model)` and `param_groups(model)`, bit for bit those of the plan."""

    trainer: ClassVar[str] = "PyTorch"
    template: ClassVar[str] = "pytorch.py"
    two_optimizers: ClassVar[bool] = True
    own_model: ClassVar[bool] = True
    # By LambdaLR: eta_min of CosineAnnealingLR is absolute, and groups have rates of their own.
    schedules: ClassVar[Mapping[str, str]] = {
        name: f"LambdaLR(optimizer, lambda t: (t + 1) / {{warmup}} if t < {{warmup}} else {after})"
        for name, after in {
            "constant": "1.0",
            "linear": "1 - (1 - {final}) * (t - {start}) / {span}",
            "cosine": "{final} + (1 - {final}) / 2 * (1 + cos(pi * (t - {start}) / {span}))",
            "wsd linear": "1 - (1 - {final}) * max(0, t - {start}) / {span}",
            "wsd 1-sqrt": "1 - (1 - {final}) * sqrt(max(0, t - {start}) / {span})",
        }.items()
    }

    def values(self, plan: TransferPlan) -> dict[str, Any]:
        """Groups with how they are updated, and the call that makes the optimizer."""
        muon = torch_muon(plan)
        call = MUON_CALL if muon else torch_call(plan)
        return {"rows": rows(plan, updates=True), "optimizer": call, "muon": muon}


MUON_CALL = "optimizers(model)  # Muon and AdamW: step both, one factor on all groups' rates"


def torch_muon(plan: TransferPlan) -> str:
    """Arguments of `torch.optim.Muon` as Python; "" of a plan for another optimizer."""
    if optimizer_name(plan) != "muon":
        return ""
    choices = optimizer_choices(plan)
    values = {
        "momentum": optimizer_settings(plan)["momentum"],
        "nesterov": choices.get("nesterov", False),
        "ns_steps": choices["steps"],
        "ns_coefficients": tuple(choices["coefficients"]),
    }
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def torch_call(plan: TransferPlan) -> str:
    """The line of Python that makes the optimizer, or one with words where torch has none such."""
    values = optimizer_settings(plan)
    match optimizer_name(plan):
        case "adamw":
            betas = (values.get("beta1", 0.9), values.get("beta2", 0.999))
            return f"torch.optim.AdamW(param_groups(model), betas={betas})"
        case "sgd":
            momentum = values.get("momentum", 0.0)
            nesterov = "Nesterov's " if optimizer_choices(plan).get("nesterov") else ""
            return (
                f"...  # SGD of your own with {nesterov}momentum {momentum!r} and decoupled decay: "
                "torch's mixes the decay into the momentum"
            )
    name = optimizer_name(plan)
    settings = {**values, **optimizer_choices(plan)}
    arguments = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"...  # {name} of your own on param_groups(model): {arguments}"


# torchtitan 0.3: a module with a `Trainer.Config`, its documented route; regexes for groups.


@dataclass(frozen=True, kw_only=True)
class Torchtitan(Exporter):
    """Ordered regexes for AdamW; all else the run takes from `config`, written module:function."""

    trainer: ClassVar[str] = "torchtitan"
    template: ClassVar[str] = "torchtitan.py"
    schedules: ClassVar[Mapping[str, str]] = {
        name: f"lr_scheduler with warmup_steps={{warmup}}, decay_ratio={{share:g}}, "
        f'decay_type="{kind}", min_lr_factor={{final}}'
        for name, kind in {
            "linear": "linear",
            "cosine": "cosine",
            "wsd linear": "linear",
            "wsd 1-sqrt": "sqrt",
        }.items()
    }
    optimizers: ClassVar[Mapping[str, str]] = {"adamw": "AdamW"}
    config: str = "torchtitan.models.llama3.config_registry:llama3_debugmodel"

    def __post_init__(self) -> None:
        module, colon, name = self.config.partition(":")
        if not (colon and all(part.isidentifier() for part in (*module.split("."), name))):
            raise ConfigError("config", self.config, "module:function, as in my.registry:llama")

    def values(self, plan: TransferPlan) -> dict[str, Any]:
        """Groups by regexes, and the configuration that the module takes all else from."""
        module, _, name = self.config.partition(":")
        return {
            "rows": rows(plan),
            "optimizer": "AdamW",
            "module": "plan_torchtitan",
            "folder": "FOLDER",
            "config_module": module,
            "config_name": name,
        }
