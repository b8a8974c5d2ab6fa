"""Tables for terminals of any width: words stay whole, columns go by importance."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sweeper.plan.plan import PlannedParameter
from sweeper.scaling.spec import layer_of, with_layer
from sweeper.verdict.curve import Estimate
from sweeper.verdict.ladder import Size
from sweeper.verdict.trend import Trend

WIDEST = 10_000
"""More columns of letters than any table has."""


@dataclass
class Grid:
    """A table; its first `left` columns are text, the others numbers.

    Where it is wider than the terminal, the columns named in `spare` are left out, the first of
    them first, and a line says so. No cell is ever broken. Print it with crop=False: what is
    still too wide goes on in the terminal's next line.
    """

    title: str
    columns: Sequence[str]
    left: int = 1
    spare: Sequence[str] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)

    def add_row(self, *cells: str) -> None:
        """Add a row, a cell for each column."""
        self.rows.append(cells)

    def add_section(self) -> None:
        """Draw a line under the last row."""
        self.sections.add(len(self.rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, the table that fits, and what was left out of it."""
        dropped: list[str] = []
        shown = self._table(dropped)
        for name in (name for name in self.spare if name in self.columns):
            if _width(console, shown) <= options.max_width:
                break
            dropped.append(name)
            shown = self._table(dropped)
        if self.title:
            yield Text(self.title, style="bold", overflow="ignore", no_wrap=True)
        yield from console.render(shown, options.update(width=_width(console, shown)))
        if dropped:
            yield Text(f"Too narrow here for: {', '.join(dropped)}.", style="dim")

    def _table(self, dropped: Sequence[str]) -> Table:
        """The table without some of its columns."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=True)
        kept = [index for index, name in enumerate(self.columns) if name not in dropped]
        for index in kept:
            justify = "left" if index < self.left else "right"
            table.add_column(self.columns[index], justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for number, row in enumerate(self.rows, 1):
            table.add_row(*(row[index] for index in kept), end_section=number in self.sections)
        return table


def _width(console: Console, table: Table) -> int:
    """How wide a table is with every cell on a line of its own."""
    return Measurement.get(console, console.options.update(width=WIDEST), table).maximum


# Sentences and rows that the terminal and the page share.


Row = TypeVar("Row")
NOT_SEARCHED = " (not searched)"
"""Beside a hyperparameter of the best configuration that no trial moved."""


def short(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def size_words(size: Size | Mapping[str, Any], *, deep: bool) -> str:
    """A width and a depth in words; without the depth where trials take none (not `deep`)."""
    known = asdict(size) if isinstance(size, Size) else size
    return f"width {known['width']}" + (f", depth {known['depth']}" if deep else "")


ROLE_WORDS = {"fixed": "scalar-like"}
"""A role as tables name it: "fixed" reads as not trained, which is "frozen"."""


def role_word(role: str) -> str:
    """A role of a plan, for people."""
    return ROLE_WORDS.get(role, role)


def within(estimate: Estimate, digits: int = 2, sign: str = "") -> str:
    """A value with the larger half of its 95 % interval: 0.51 ±0.22; alone without an interval."""
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)
    if not math.isfinite(estimate.value):
        return "-"
    value = f"{estimate.value:{sign}.{digits}f}"
    if math.isfinite(half):
        return f"{value} ±{half:.{digits}f}"
    return f"≥{value}" if estimate.low > 0 and math.isinf(estimate.high) else value


def trend_words(fitted: Trend, *, applied: bool) -> str:
    """What the optima over width say of the target's, and what became of it."""
    low, high = 2.0**fitted.predicted_log2.low, 2.0**fitted.predicted_log2.high
    text = (
        f"Trend over {len(fitted.widths)} widths: the best eta scales as "
        f"width^({within(fitted.slope)}). At width {fitted.target} it predicts "
        f"eta {short(2.0**fitted.predicted_log2.value)} ({short(low)} to {short(high)}); the "
        f"transferred eta is {short(2.0**fitted.transferred_log2)}. "
    )
    gain = f"{fitted.gain.value:.4f} nats"
    if applied:
        return text + f"The plan uses the prediction (transfer.correct=true), which saves {gain}."
    if not fitted.warranted:
        return text + f"No correction: {fitted.reason}."
    text += "The optimum moves with the width: transfer.correct=true would plan with the "
    return text + f"prediction and save {gain}."


def grouped(parameters: Sequence[PlannedParameter]) -> list[tuple[str, PlannedParameter]]:
    """Parameters that differ in a layer's number alone, as one row with its range of layers."""
    return alike(
        parameters,
        lambda one: one.name,
        lambda one: (one.role, one.init, one.frozen, one.shape, one.target),
    )


def alike(
    rows: Sequence[Row], name: Callable[[Row], str], content: Callable[[Row], Hashable]
) -> list[tuple[str, Row]]:
    """Rows of one content whose names differ in a layer's number alone, as the first of them.

    Its name has the range of layers in place of the number: blocks.0-11.weight.
    """
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault((with_layer(name(row), "#"), content(row)), []).append(row)
    named = []
    for first, *others in groups.values():
        label = name(first)
        if others:
            label = with_layer(label, f"{layer_of(label)}-{layer_of(name(others[-1]))}")
        named.append((label, first))
    return named
