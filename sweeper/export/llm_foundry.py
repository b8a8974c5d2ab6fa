"""llm-foundry: the section `optimizer` of its YAML, with groups by regexes of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from sweeper.export.exporter import (
    Exporter,
    Setting,
    as_planned,
    optimizer_name,
    optimizer_settings,
)
from sweeper.export.groups import regex, rows
from sweeper.export.render import render
from sweeper.transfer.plan import PlannedParameter, TransferPlan


@dataclass(frozen=True, kw_only=True)
class LlmFoundry(Exporter):
    """`param_groups` of Composer's decoupled optimizers.

    Their decay is the plan's own: a step removes weight_decay x lr / initial lr of a weight.
    """

    trainer: ClassVar[str] = "llm-foundry"
    comment: ClassVar[str] = "# "
    optimizers: ClassVar[Mapping[str, str]] = {
        "adamw": "decoupled_adamw",
        "lion": "decoupled_lionw",
    }

    def setting(self, plan: TransferPlan, parameter: PlannedParameter) -> Setting:
        """As planned, but for initial values: `init_config` has one rule for all weights."""
        return replace(as_planned(parameter), init_std=None)

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        """`plan_llm_foundry.yaml`."""
        name, values, found = optimizer_name(plan), optimizer_settings(plan), rows(plan)
        moving = [row for row in found if not row.frozen]
        text = render(
            "llm_foundry.yaml",
            header=header,
            rows=moving,
            frozen=[row for row in found if row.frozen],
            regex=regex,
            optimizer=self.optimizers.get(name, "decoupled_adamw"),
            betas=(values.get("beta1", 0.9), values.get("beta2", 0.999)),
            lr=moving[0].lr,
            decay=moving[0].weight_decay,
            eps=None if name == "lion" else moving[0].eps,
        )
        return {"plan_llm_foundry.yaml": text}
