"""Plain PyTorch: one file without sweeper in it, to be read in a pull request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.export.exporter import (
    Exporter,
    optimizer_choices,
    optimizer_name,
    optimizer_settings,
    seed_of,
    takes_eps,
)
from sweeper.export.groups import WRAPPERS, rows
from sweeper.export.render import render
from sweeper.transfer.plan import TransferPlan


@dataclass(frozen=True, kw_only=True)
class Pytorch(Exporter):
    """`init_(model)` and `param_groups(model)`, bit for bit those of the plan."""

    trainer: ClassVar[str] = "PyTorch"

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        """`plan_pytorch.py`."""
        text = render(
            "pytorch.py",
            header=header,
            rows=rows(plan),
            seed=seed_of(plan),
            wrappers=WRAPPERS,
            eps=takes_eps(plan),
            optimizer=torch_call(plan),
        )
        return {"plan_pytorch.py": text}


def torch_call(plan: TransferPlan) -> str:
    """The optimizer as torch has it, or in words where torch has none of the kind."""
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
    told = ", ".join(
        f"{key}={value!r}" for key, value in {**values, **optimizer_choices(plan)}.items()
    )
    return f"...  # {name} of your own on param_groups(model): {told}"
