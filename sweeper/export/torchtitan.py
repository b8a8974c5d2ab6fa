"""torchtitan 0.3: a module with a `Trainer.Config`, its documented route; regexes for groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sweeper.errors import ConfigError
from sweeper.export.exporter import Exporter, optimizer_settings, seed_of, takes_eps
from sweeper.export.groups import WRAPPERS, rows
from sweeper.export.render import render
from sweeper.transfer.plan import TransferPlan

MODULE = "plan_torchtitan"


@dataclass(frozen=True, kw_only=True)
class Torchtitan(Exporter):
    """Ordered regexes with AdamW's settings, and the plan's own initial weights.

    `config` is the configuration function that the run takes all else from, as module:function.
    """

    trainer: ClassVar[str] = "torchtitan"
    optimizers: ClassVar[Mapping[str, str]] = {"adamw": "AdamW"}
    config: str = "torchtitan.models.llama3.config_registry:llama3_debugmodel"

    def __post_init__(self) -> None:
        """Refuse a `config` that names no function."""
        module, colon, name = self.config.partition(":")
        if not (colon and module and name.isidentifier()):
            raise ConfigError("config", self.config, "module:function, as in my.registry:llama")

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        """`plan_torchtitan.py`."""
        module, _, name = self.config.partition(":")
        values = optimizer_settings(plan)
        text = render(
            "torchtitan.py",
            header=header,
            rows=rows(plan),
            seed=seed_of(plan),
            wrappers=WRAPPERS,
            eps=takes_eps(plan),
            optimizer="AdamW",
            betas=(values.get("beta1", 0.9), values.get("beta2", 0.999)),
            module=MODULE,
            folder="FOLDER",
            config_module=module,
            config_name=name,
        )
        return {f"{MODULE}.py": text}
