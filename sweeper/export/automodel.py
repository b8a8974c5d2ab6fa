"""NeMo Automodel: the section `optimizer` of its YAML, with multiples of one rate and decay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from sweeper.export.exporter import (
    Exporter,
    Setting,
    as_planned,
    once_a_plan,
    optimizer_settings,
    trained,
)
from sweeper.export.groups import Row, regex, rows
from sweeper.export.render import render
from sweeper.transfer.plan import PlannedParameter, TransferPlan


@dataclass(frozen=True, kw_only=True)
class Automodel(Exporter):
    """`param_group_overrides`: `lr_mult` and `wd_mult`, nothing else of a group.

    There is one eps for all; it is the one that most parameters have.
    """

    trainer: ClassVar[str] = "NeMo Automodel"
    comment: ClassVar[str] = "# "
    optimizers: ClassVar[Mapping[str, str]] = {"adamw": "torch.optim.AdamW"}

    def setting(self, plan: TransferPlan, parameter: PlannedParameter) -> Setting:
        """Rates and decay as planned; eps is the base group's, and init the model's own."""
        return replace(as_planned(parameter), eps=_commonest_eps(plan), init_std=None)

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        """`plan_automodel.yaml`."""
        values, found = optimizer_settings(plan), rows(plan)
        base = next(row for row in found if not row.frozen)
        decay = base.decay_over_lr
        text = render(
            "automodel.yaml",
            header=header,
            base=replace(base, eps=_commonest_eps(plan)),
            decay=decay,
            multiples=[_multiples(row, base, decay) for row in found],
            regex=regex,
            betas=(values.get("beta1", 0.9), values.get("beta2", 0.999)),
        )
        return {"plan_automodel.yaml": text}


def _multiples(row: Row, base: Row, decay: float) -> tuple[Row, float, float]:
    """The row, its learning rate and its decay over the base's; zeros for what is frozen."""
    if row.frozen:
        return row, 0.0, 0.0
    return row, row.lr / base.lr, row.decay_over_lr / decay if decay else 1.0


@once_a_plan
def _commonest_eps(plan: TransferPlan) -> float:
    """The eps of most entries."""
    counts: dict[float, int] = {}
    for parameter in trained(plan):
        size = 1
        for side in parameter.shape:
            size *= side
        eps = as_planned(parameter).eps or 0.0
        counts[eps] = counts.get(eps, 0) + size
    return max(counts, key=lambda eps: counts[eps])
