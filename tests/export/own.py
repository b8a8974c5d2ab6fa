"""An exporter of a user's own."""

from dataclasses import dataclass
from typing import ClassVar

from sweeper.export.exporter import Exporter
from sweeper.plan.plan import TransferPlan


@dataclass(frozen=True, kw_only=True)
class Own(Exporter):
    trainer: ClassVar[str] = "mine"
    greeting: str = "hello"

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        return {"own.txt": f"{header} {self.greeting}"}
