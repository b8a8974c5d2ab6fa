"""What is asked of a table of runs, and what it says of a transfer: codes, and the record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sweeper.decide.ladder_verdict import Answer, Verdict
from sweeper.decide.trend import Trend
from sweeper.errors import ConfigError, Keyword, Text
from sweeper.evidence.judge.next_runs import NextRuns
from sweeper.evidence.runs.grid import GridOptions
from sweeper.records import NOT_WRITTEN, WRITTEN_IF_SET, to_json
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderSize, SizeCurve

UNDECIDED: Answer = "cannot say yet"
Finding = Literal["", "ladder", "ladders", "one_size"]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A curve whose best value is its last (`side` 1) or first (-1), or its only one (0)."""

    size: LadderSize
    side: int
    log2: float


@dataclass(frozen=True, kw_only=True)
class TableVerdict:
    """What `judge.json` holds: the answer, and the verdict behind it, if any.

    `finding` says what it rests on, `edges` where an optimum is not bracketed. `ours`: the runs are
    of a study of ours, whose settings mean something to the user. `rounded` is the step that losses
    are rounded to, `bits` the column that is in bits per byte, `remarks` what made the curves
    unlike a ladder's. A record has `sentences`, `ends` and `notes` in words instead.

    `curves` are what was judged, `next_runs` would tell more. `bound` is set where the transferred
    value is the base's best and the base's optimum lies "at or above" or "at or below" it.
    `predicted` is log2 of the best learning rate at the target `to`, where it is asked about and
    the optima tell it.

    Of a table with several values of a further size, `ladders` are the verdicts on each, with its
    `key`, and the answer is the worst.
    """

    answer: Answer
    sentences: tuple[str, ...] = ()
    axis: str
    hyperparameter: str = "eta"
    transferred_log2_eta: float = math.nan
    bound: str = ""
    to: int | None = None
    predicted: Estimate | None = None
    axes: tuple[Verdict, ...] = ()
    trend: Trend | None = None
    curves: tuple[SizeCurve, ...] = ()
    ends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    next_runs: tuple[NextRuns, ...] = ()
    overrides: tuple[str, ...] = ()
    noise: str = ""
    runs: int = 0
    plain: bool = True
    source: str = ""
    sha256: str = ""
    where: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    parameterization: str = ""
    command: str = ""
    key: Mapping[str, int] = field(default_factory=dict, metadata=WRITTEN_IF_SET)
    ladders: tuple[TableVerdict, ...] = field(default=(), metadata=WRITTEN_IF_SET)
    finding: Finding = field(default="", compare=False, metadata=NOT_WRITTEN)
    edges: tuple[Edge, ...] = field(default=(), compare=False, metadata=NOT_WRITTEN)
    ours: bool = field(default=False, compare=False, metadata=NOT_WRITTEN)
    rounded: float = field(default=0.0, compare=False, metadata=NOT_WRITTEN)
    remarks: tuple[Text, ...] = field(default=(), compare=False, metadata=NOT_WRITTEN)
    bits: str = field(default="", compare=False, metadata=NOT_WRITTEN)

    @property
    def verdict(self) -> Verdict | None:
        """That of the ladder; None where there is none, as with one size."""
        return self.axes[0] if self.axes else None

    @property
    def unit(self) -> str:
        """That of the losses, and of what is lost."""
        return "bits/byte" if self.bits else "nats"

    @property
    def record(self) -> dict[str, Any]:
        """Plain JSON, in the form of a study's validation where it says the same."""
        record: dict[str, Any] = to_json(self)
        return record


@dataclass(frozen=True, kw_only=True)
class TableQuestion:
    """What is asked of a table: how to read it, the target, the value to judge, the thresholds.

    `eta` is the transferred learning rate, None: the base's optimum. `theory`: whether the runs are
    of a parameterization whose optima converge, None: by the column of that name.
    """

    reading: GridOptions = field(default_factory=GridOptions)
    to: int | None = None
    eta: float | None = None
    max_shift: float = 1.0
    max_loss_gap: float = 0.01
    theory: bool | None = None

    def __post_init__(self) -> None:
        """ConfigError for a number that is none."""
        for name, keyword in POSITIVE.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(Keyword(keyword), value, "a positive number")
        # A logarithm below all numbers is that of a learning rate of 0.
        if self.eta is not None and not (math.isfinite(self.eta) and 2.0 ** min(self.eta, 0.0)):
            raise ConfigError(
                Keyword("eta"), self.eta, "a learning rate, or its log2 where it is negative"
            )


POSITIVE = {
    "to": "to_width",
    "max_shift": "max_shift",
    "max_loss_gap": "max_loss_gap",
}
"""Fields that are numbers above 0, and the keywords that give them."""
