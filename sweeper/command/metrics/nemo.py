"""Lines of NeMo: its log, and the bar of Lightning that it shows."""

from __future__ import annotations

from typing import ClassVar

from sweeper.command.metrics.pattern import Printed


class NemoLines(Printed):
    """`... | global_step: 9 | reduced_train_loss: 10.9 | ...`, of a bar with `=` and commas."""

    form: ClassVar[str] = "nemo[:validation]"
    trainer = "NeMo"
    patterns: ClassVar = {
        # A bar has the loss before the step.
        "": r"^(?=.*?\bglobal_step[:=] ?(?P<step>\d+)).*?"
        r"\breduced_train_loss[:=] ?(?P<loss>[^\s,|\]]+)",
        "validation": r"^(?=.*?\bglobal_step[:=] ?(?P<step>\d+)).*?"
        r"\bval_loss[:=] ?(?P<loss>[^\s,|\]]+)",
    }
