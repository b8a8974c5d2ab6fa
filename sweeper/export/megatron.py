"""Megatron-LM: its muP flags of today, and the recipe flags that are proposed.

The rules are those of `get_mup_config_overrides`, `get_standard_config_overrides` and
`TransformerConfig.__post_init__` in Megatron-LM's main branch, autumn 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, sqrt
from pathlib import Path
from typing import Any, ClassVar

from sweeper.command.template import styled
from sweeper.export.exporter import (
    Exporter,
    Setting,
    factors_of,
    first_hidden,
    head_of,
    is_table,
    logits_multiplier,
    once_a_plan,
    optimizer_name,
    optimizer_settings,
    rows_multiplier,
    table_of,
    value_of,
)
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan

PROJECTION = re.compile(r"(o_proj|out_proj|c_proj|wo|w2|down|down_proj|out|linear_proj|linear_fc2)")
"""Names of the matrices at the ends of branches, which Megatron draws smaller by depth."""
RECIPE = {
    "use-mup": ("scaling-recipe", "mup"),
    "mup-base-hidden-size": ("scaling-base-hidden-size", None),
    "mup-base-head-dim": ("scaling-base-head-dim", None),
}
"""Flags of today, and what the proposal has in their place: a flag, and its value if another."""


@dataclass(frozen=True, kw_only=True)
class Megatron(Exporter):
    """Flags. `recipe` writes the proposed `--scaling-recipe` in place of `--use-mup`.

    Under Adam hidden matrices have learning rate and eps over m, all else the flags'; decay is
    coupled to the rate and 0 for what has one dimension; one init for hidden matrices, smaller by
    depth at the ends of branches, another for embedding and head.
    """

    trainer: ClassVar[str] = "Megatron-LM"
    template: ClassVar[str] = "megatron.args"
    schedules: ClassVar[Mapping[str, str]] = {
        "constant": "--lr-decay-style constant --lr-warmup-iters {warmup} --train-iters {steps}",
        **{
            name: f"--lr-decay-style {style} --lr-warmup-iters {{warmup}} "
            "--lr-decay-iters {steps} --train-iters {steps}, and as --min-lr {final} of --lr"
            for name, style in {
                "linear": "linear",
                "cosine": "cosine",
                "wsd linear": "WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters {decay}",
                "wsd 1-sqrt": "WSD --lr-wsd-decay-style minus_sqrt --lr-wsd-decay-iters {decay}",
            }.items()
        },
    }
    comment: ClassVar[str] = "# "
    optimizers: ClassVar[Mapping[str, str]] = {"adamw": "adam", "sgd": "sgd", "lion": "lion"}
    freezes: ClassVar[bool] = False
    plain_sgd: ClassVar[bool] = True
    recipe: bool = False

    @once_a_plan
    def flags(self, plan: TransferPlan) -> dict[str, Any]:
        """Every flag by its name, before `recipe` renames some."""
        # Each flag is what makes Megatron's rule (see the class) give the hidden matrices theirs:
        # Adam has lr / m and eps / m for them, Lion lr / m, SGD lr, all init-method-std / sqrt(m).
        m, hidden = _m(plan), first_hidden(plan).absorbed()
        name, values = optimizer_name(plan), optimizer_settings(plan)
        matrix = table_of(plan) or head_of(plan)
        drawn = matrix.absorbed(matrix.target.multiplier) if matrix else None
        flags: dict[str, Any] = {
            "use-mup": True,
            "mup-base-hidden-size": plan.base.width,
            "mup-embedding-mult": rows_multiplier(plan),
            "mup-output-mult": logits_multiplier(plan),
            **_attention_flags(plan),
            "optimizer": self.optimizers.get(name, name),
            "lr": hidden.lr * (1.0 if name == "sgd" else m),
            "weight-decay": hidden.weight_decay / hidden.lr,
            "init-method-std": hidden.init_std * sqrt(m),
            # Embedding and untied head share it: the embedding's.
            "embedding-init-method-std": drawn.init_std if drawn else 0.02,
        }
        if name in ("adamw", "lion"):
            prefix = "adam" if name == "adamw" else "lion"
            flags |= {f"{prefix}-{key}": value for key, value in values.items()}
        if name == "adamw":
            flags["adam-eps"] = hidden.eps * m
        if name == "sgd":
            flags["sgd-momentum"] = values.get("momentum", 0.9)
        return flags

    def setting(self, plan: TransferPlan, parameter: PlannedParameter) -> Setting:
        """What Megatron's rules (see the class) make of the flags for one parameter."""
        # Megatron divides Adam's rate and eps of hidden matrices by m, and multiplies SGD's rate of
        # all else by it; a coupled decay is lr x weight_decay, and vectors have none.
        m, flags = _m(plan), self.flags(plan)
        vector = _marked(plan, parameter) or len(parameter.shape) <= 1
        sgd = optimizer_name(plan) == "sgd"
        lr = flags["lr"] * ((m if vector else 1.0) if sgd else (1.0 if vector else 1 / m))
        eps = flags.get("adam-eps", parameter.absorbed().eps)
        return Setting(
            lr=lr,
            weight_decay=lr * flags["weight-decay"] if len(parameter.shape) > 1 else 0.0,
            eps=eps if vector or "adam-eps" not in flags else eps / m,
            init_std=_init_std(plan, parameter, flags, m),
            forward=_forward(plan, parameter, flags),
        )

    def applied(self, plan: TransferPlan, factor: PlannedFactor) -> float:
        """Attention by power and base head size; residual branches have none."""
        flags = self.flags(plan)
        match factor.kind, factor.factor:
            case "attention", "logit":
                base: float = flags.get("mup-base-head-dim", 1.0)
                power: float = flags["mup-attn-scale-power"]
                return float(sqrt(base) * factor.head_size**-power)
            case "tied_readout", "output":
                embedding: float = flags["mup-embedding-mult"] * value_of(plan, "loss", "logit")
                return output_multiplier(flags["mup-output-mult"], _m(plan)) / embedding
            case "loss", "logit":
                return factor.value  # it is part of the output's
        return 1.0

    def values(self, plan: TransferPlan) -> dict[str, Any]:
        """Words for the command line, one flag a line."""
        flags = self.flags(plan)
        if self.recipe:
            renamed = {name: RECIPE.get(name, (name, None)) for name in flags}
            flags = {
                new: flags[name] if value is None else value
                for name, (new, value) in renamed.items()
            }
        lines = [" ".join(styled("spaces", {k: v}, Path())) for k, v in flags.items()]
        head = head_of(plan)
        return {"lines": lines, "head": head.name if head else None}


def output_multiplier(flag: float, m: float) -> float:
    """What Megatron makes of `--mup-output-mult`: 1, its default, becomes 1/m."""
    return 1 / m if flag == 1.0 and m != 1.0 else flag


def _m(plan: TransferPlan) -> float:
    return plan.target.width / plan.base.width


def _marked(plan: TransferPlan, parameter: PlannedParameter) -> bool:
    return is_table(parameter) or parameter is head_of(plan)


def _attention_flags(plan: TransferPlan) -> dict[str, float]:
    first = next(factors_of(plan, "attention", "logit"), None)
    if first is None:
        return {"mup-attn-scale-power": 1.0}
    if isclose(first.value, first.head_size**-0.5):
        return {"mup-attn-scale-power": 0.5}
    # Megatron's factor is sqrt(base head size) * head size^-power: alpha/d has base = alpha^2.
    alpha = first.value * first.head_size
    usual = isclose(alpha, 1.0)
    return {"mup-attn-scale-power": 1.0} | ({} if usual else {"mup-base-head-dim": alpha**2})


def _init_std(
    plan: TransferPlan, parameter: PlannedParameter, flags: Mapping[str, Any], m: float
) -> float | None:
    """The std of a drawn parameter; None where no parameter has a usual name of a branch's end.

    Megatron draws those ends smaller, and then nobody can say which they are.
    """
    if _marked(plan, parameter):
        return float(flags["embedding-init-method-std"])
    std = float(flags["init-method-std"]) / sqrt(m)
    if not any(map(_ends_branch, plan.parameters)):
        return None
    return std / sqrt(2 * plan.target.depth) if _ends_branch(parameter) else std


def _ends_branch(parameter: PlannedParameter) -> bool:
    owner = parameter.name.split(".")[-2:-1]
    return bool(owner and PROJECTION.fullmatch(owner[0]))


def _forward(plan: TransferPlan, parameter: PlannedParameter, flags: Mapping[str, Any]) -> float:
    if is_table(parameter):
        return float(flags["mup-embedding-mult"])
    if parameter is head_of(plan):
        loss = value_of(plan, "loss", "logit")
        return output_multiplier(flags["mup-output-mult"], _m(plan)) / loss
    return 1.0
