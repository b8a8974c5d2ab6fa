"""OLMo-core: group overrides by shell patterns of names, in the Python of its own scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sweeper.export.exporter import Exporter, optimizer_name, optimizer_settings, seed_of, takes_eps
from sweeper.export.groups import WRAPPERS, rows
from sweeper.export.render import render
from sweeper.transfer.plan import TransferPlan


@dataclass(frozen=True, kw_only=True)
class OlmoCore(Exporter):
    """`OptimGroupOverride`s for AdamWConfig or LionConfig, and the plan's own initial weights."""

    trainer: ClassVar[str] = "OLMo-core"
    optimizers: ClassVar[Mapping[str, str]] = {"adamw": "AdamWConfig", "lion": "LionConfig"}

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        """`plan_olmo_core.py`."""
        name, values = optimizer_name(plan), optimizer_settings(plan)
        text = render(
            "olmo_core.py",
            header=header,
            rows=rows(plan),
            seed=seed_of(plan),
            wrappers=WRAPPERS,
            eps=takes_eps(plan),
            optimizer=self.optimizers.get(name, "AdamWConfig"),
            betas=(values.get("beta1", 0.9), values.get("beta2", 0.999)),
        )
        return {"plan_olmo_core.py": text}
