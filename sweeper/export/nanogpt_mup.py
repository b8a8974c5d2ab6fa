"""nanoGPT-mup (EleutherAI and Cerebras): flags of its train.py, CompleteP as an option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, log, sqrt
from typing import Any, ClassVar

from sweeper.export.exporter import (
    Exporter,
    Setting,
    first_hidden,
    head_of,
    in_gauge,
    is_head,
    is_table,
    logits_multiplier,
    once_a_plan,
    optimizer_settings,
    rows_multiplier,
    value_of,
)
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.scaling.spec import Role

INIT_STD = 0.02
"""The model's own: train.py reads --init_std and does not hand it on."""
TORCH_EPS = 1e-8
PROJECTION = "c_proj.weight"


@dataclass(frozen=True, kw_only=True)
class NanogptMup(Exporter):
    """Flags; embedding and head are one matrix there. `completep`: for the branch of that name.

    Its rules: hidden matrices have learning rate / m, all else the learning rate; decay is coupled
    and for matrices alone; attention is 1/d; the branch divides branches by depth^alpha.
    """

    trainer: ClassVar[str] = "nanoGPT-mup"
    template: ClassVar[str] = "nanogpt_mup.py"
    schedules: ClassVar[Mapping[str, str]] = {
        "cosine": "decay_lr = True, warmup_iters = {warmup}, lr_decay_iters = max_iters = {steps}, "
        "min_lr = {final} * learning_rate"
    }
    comment: ClassVar[str] = "# "
    optimizers: ClassVar[Mapping[str, str]] = {"adamw": "AdamW"}
    freezes: ClassVar[bool] = False
    ties: ClassVar[bool] = True
    completep: bool = False

    @once_a_plan
    def flags(self, plan: TransferPlan) -> dict[str, Any]:
        """Every flag by its name in train.py."""
        m, embedding = plan.target.width / plan.base.width, rows_multiplier(plan)
        hidden = in_gauge(first_hidden(plan), 1.0)
        values, depth = optimizer_settings(plan), self._depth(plan)
        # train.py gives hidden matrices learning_rate / m * depth^(alpha - 1), and with CompleteP
        # eps adam_eps / m * depth^-alpha and decay weight_decay * m: solved for the flags.
        lr = hidden.lr * m / (depth["depth_multiplier"] ** (depth["depth_alpha_exp"] - 1))
        decay = hidden.weight_decay / hidden.lr
        flags = {
            "learning_rate": lr,
            "weight_decay": decay / m if self.completep else decay,
            "beta1": values.get("beta1", 0.9),
            "beta2": values.get("beta2", 0.999),
            "mup_enabled": True,
            "mup_width_multiplier": m,
            "mup_input_alpha": embedding,
            "mup_output_alpha": logits_multiplier(plan) * m,
        }
        if self.completep:
            flags |= {"depth_alpha_enabled": True, **depth}
            flags["adam_eps"] = hidden.eps * m / self._branch(plan)
        return {name: _plain(value) for name, value in flags.items()}

    def setting(self, plan: TransferPlan, parameter: PlannedParameter) -> Setting:
        """What train.py's rules (see the class) make of the flags for one parameter."""
        flags, m = self.flags(plan), plan.target.width / plan.base.width
        matrix, hidden = len(parameter.shape) > 1, parameter.role == Role.HIDDEN
        lr, decay, eps = flags["learning_rate"], flags["weight_decay"], TORCH_EPS
        lr = lr / m if hidden and matrix else lr
        if self.completep:
            depth = flags["depth_multiplier"]
            eps = flags["adam_eps"] / m * depth ** -flags["depth_alpha_exp"]
            decay = decay * m if hidden else decay
            # All but the embedding and the last norm; the two are told by their names.
            inner = hidden or ".ln_f." not in parameter.name
            if inner and parameter.role != Role.EMBEDDING:
                lr *= depth ** (flags["depth_alpha_exp"] - 1)
        return Setting(
            lr=lr,
            weight_decay=lr * decay if matrix else 0.0,
            eps=eps,
            init_std=self._init_std(plan, parameter, m),
            forward=self._forward(plan, parameter, flags),
        )

    def applied(self, plan: TransferPlan, factor: PlannedFactor) -> float:
        """Attention is 1/d, whatever the plan's; branches are the depth's, or 1."""
        flags = self.flags(plan)
        match factor.kind, factor.factor:
            case "attention", "logit":
                return 1 / factor.head_size
            case "residual", "branch":
                return self._branch(plan)
            case "tied_readout", "output":
                m = flags["mup_width_multiplier"]
                logits = flags["mup_output_alpha"] / m / self._loss(plan)
                return float(logits / flags["mup_input_alpha"])
            case "loss", "logit":
                return factor.value  # it is part of the output's
        return 1.0

    def values(self, plan: TransferPlan) -> dict[str, Any]:
        """Flags, for a configuration file of train.py."""
        head = head_of(plan)
        return {"flags": self.flags(plan), "head": head.name if head else None}

    def _loss(self, plan: TransferPlan) -> float:
        return value_of(plan, "loss", "logit")

    def _depth(self, plan: TransferPlan) -> dict[str, float]:
        """Depth over base depth, and the alpha by which the plan's branch is depth^-alpha."""
        ratio, branch = plan.target.depth / plan.base.depth, value_of(plan, "residual", "branch")
        # branch = ratio^-alpha; at the base's depth every alpha gives 1.
        alpha = -log(branch) / log(ratio) if ratio != 1 else 1.0
        if not self.completep:
            return {"depth_multiplier": 1.0, "depth_alpha_exp": 1.0}
        return {"depth_multiplier": ratio, "depth_alpha_exp": round(alpha, 12)}

    def _branch(self, plan: TransferPlan) -> float:
        depth = self._depth(plan)
        return float(depth["depth_multiplier"] ** -depth["depth_alpha_exp"])

    def _init_std(self, plan: TransferPlan, parameter: PlannedParameter, m: float) -> float:
        """0.02, over the root of m for hidden matrices, and of the depth for projections."""
        if parameter.role != Role.HIDDEN:
            return INIT_STD
        deep = parameter.name.endswith(PROJECTION) and not self.completep
        return INIT_STD / sqrt(m) / (sqrt(2 * plan.target.depth) if deep else 1.0)

    def _forward(
        self, plan: TransferPlan, parameter: PlannedParameter, flags: Mapping[str, Any]
    ) -> float:
        if is_table(parameter):
            return float(flags["mup_input_alpha"])
        logits = flags["mup_output_alpha"] / flags["mup_width_multiplier"] / self._loss(plan)
        return float(logits) if is_head(plan, parameter) else 1.0


def _plain(value: Any) -> Any:
    """A float that is 1 but for its last digit as 1.0: it is read by people."""
    return 1.0 if isinstance(value, float) and isclose(value, 1.0, rel_tol=1e-12) else value
