"""Lines of torchtitan."""

from __future__ import annotations

from typing import ClassVar

from sweeper.command.metrics.pattern import Printed


class TorchtitanLines(Printed):
    """`[titan] ... INFO - step: 10  loss:  7.1234  grad_norm: ...`."""

    form: ClassVar[str] = "torchtitan[:validation]"
    trainer = "torchtitan"
    patterns: ClassVar = {
        "": r"(?<!validate )(?<!\w)step: *(?P<step>\d+).*?\bloss: *(?P<loss>\S+)",
        "validation": r"validate step: *(?P<step>\d+).*?\bloss: *(?P<loss>\S+)",
    }
