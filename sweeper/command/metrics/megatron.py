"""Lines of Megatron-LM's training loop."""

from __future__ import annotations

from typing import ClassVar

from sweeper.command.metrics.pattern import Printed


class MegatronLines(Printed):
    """` iteration 10/ 400 | ... | lm loss: 3.73E+00 |`; a loss that is NaN it leaves out."""

    form: ClassVar[str] = "megatron[:validation]"
    trainer = "Megatron-LM"
    patterns: ClassVar = {
        "": r"(?<!\w)iteration +(?P<step>\d+)/.*?\blm loss: (?P<loss>\S+)",
        "validation": r"validation\S* loss at iteration (?P<step>\d+)(?!\d)(?! on test set)"
        r".*?lm loss value: (?P<loss>\S+)",
    }
