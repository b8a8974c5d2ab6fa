"""The lines that trainers and bars print, a class for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sweeper.command.metrics.pattern import Log, Printed
from sweeper.command.reading import Lines, Metric, MetricSource
from sweeper.errors import ConfigError, Keyword


class MegatronLines(Printed):
    """` iteration 10/ 400 | ... | lm loss: 3.73E+00 |`; a loss that is NaN it leaves out."""

    form: ClassVar[str] = "megatron[:validation]"
    trainer = "Megatron-LM"
    patterns: ClassVar = {
        "": r"(?<!\w)iteration +(?P<step>\d+)/.*?\blm loss: (?P<loss>\S+)",
        "validation": r"validation\S* loss at iteration (?P<step>\d+)(?!\d)(?! on test set)"
        r".*?lm loss value: (?P<loss>\S+)",
    }


class NanochatLines(Printed):
    """`step 00010/21400 (0.05%) | loss: 8.123456 | ...`; its validation is in bits a byte."""

    form: ClassVar[str] = "nanochat[:validation]"
    trainer = "nanochat"
    patterns: ClassVar = {
        "": r"(?<!\w)step (?P<step>\d+)/\d+ .*?\bloss: (?P<loss>[^\s|]+)",
        "validation": r"Step (?P<step>\d+) \| Validation bpb: (?P<loss>[^\s|]+)",
    }


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


class TorchtitanLines(Printed):
    """`[titan] ... INFO - step: 10  loss:  7.1234  grad_norm: ...`."""

    form: ClassVar[str] = "torchtitan[:validation]"
    trainer = "torchtitan"
    patterns: ClassVar = {
        "": r"(?<!validate )(?<!\w)step: *(?P<step>\d+).*?\bloss: *(?P<loss>\S+)",
        "validation": r"validate step: *(?P<step>\d+).*?\bloss: *(?P<loss>\S+)",
    }


@dataclass(frozen=True)
class Tqdm(Metric):
    """`37%|###   | 37/100 [00:01<00:02, 30.1it/s, loss=2.345]`: `name` is the loss's, `loss`."""

    name: str

    form: ClassVar[str] = "tqdm[:NAME]"

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Tqdm:
        """The name under which the bar shows the loss."""
        name = rest or "loss"
        if re.search(r"[\s,=]", name):
            raise ConfigError(key, rest, f"{cls.form}, the name of the loss in the bar")
        return cls(name)

    def describe(self) -> str:
        """The name."""
        return f"{self.name} in the bar that tqdm shows in its output"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """The log: that of an earlier run is removed before a fresh one."""
        name = re.escape(self.name)
        bar = rf"\| *(?P<step>\d+)/\d+ *\[.*?(?<![\w/]){name}[=:] ?(?P<loss>[^\s,\]]+)"
        return Log(Lines(log), re.compile(bar))
