"""Lines of nanochat's base_train.py."""

from __future__ import annotations

from typing import ClassVar

from sweeper.command.metrics.pattern import Printed


class NanochatLines(Printed):
    """`step 00010/21400 (0.05%) | loss: 8.123456 | ...`; its validation is in bits a byte."""

    form: ClassVar[str] = "nanochat[:validation]"
    trainer = "nanochat"
    patterns: ClassVar = {
        "": r"(?<!\w)step (?P<step>\d+)/\d+ .*?\bloss: (?P<loss>[^\s|]+)",
        "validation": r"Step (?P<step>\d+) \| Validation bpb: (?P<loss>[^\s|]+)",
    }
