"""The bar that tqdm shows: its count is the step, the loss stands behind it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sweeper.command.lines import Lines
from sweeper.command.metrics.pattern import Log
from sweeper.command.reading import Metric, MetricSource
from sweeper.errors import ConfigError, Keyword


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
