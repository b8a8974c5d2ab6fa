"""How far the best size of a budget is off, and whether its interval holds: published isoFLOPs.

    python scripts/bench/best_size.py ../shared/data

Of every table in `tables.py` with budgets of several sizes the runs up to each budget are taken,
and the best size of the next two is asked about. What it was, a parabola through that budget's own
runs says, where they reach far enough to both sides; that one is good to a twentieth of an octave.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from findings import Findings
from tables import TABLES, Published, best_of_budget, budgets_of

from sweeper.errors import BadInput
from sweeper.evidence.predict.decision import PREDICTED, LossQuestion, predict_runs

LEAST_BUDGETS, NEXT, ALLOWED = 3, 2, 8.0
"""Budgets that are fitted at least, those beyond that are asked about, and the factor from the
lower end of an interval to its upper one that is told as an answer."""


@dataclass(frozen=True)
class Asked:
    """A budget beside what was said of it: log2 of the best size by its own runs, and said."""

    table: str
    fitted: float
    flops: float
    best: float
    said: float
    low: float
    high: float
    answered: bool

    @property
    def inside(self) -> bool:
        """Whether the interval holds it."""
        return self.low <= self.best <= self.high

    @property
    def wide(self) -> bool:
        """Whether it was answered with an interval that says nothing."""
        return self.answered and self.high - self.low > math.log2(ALLOWED)


def play(table: Published, folder: Path, draws: int) -> Iterator[Asked]:
    """What is said of each of a table's budgets by those below it."""
    runs = table.runs(folder)
    groups = list(budgets_of(runs))
    # Runs that share no budgets are no isoFLOPs: of a few runs each no parabola is drawn.
    if len(groups) < LEAST_BUDGETS + 1 or len(runs) < 4 * len(groups):
        return
    for place in range(LEAST_BUDGETS, len(groups)):
        near = runs.only(runs.flops <= 1.06 * groups[place - 1][0])
        for flops, some in groups[place : place + NEXT]:
            best = best_of_budget(some.params, some.loss)
            if best is None:
                continue
            try:
                made = predict_runs(near, LossQuestion(flops=flops, draws=draws))
            except BadInput:
                made = None
            if made is None or made.optimum is None:
                nothing = (math.nan, -math.inf, math.inf, False)
                yield Asked(table.name, groups[place - 1][0], flops, best, *nothing)
                continue
            size = made.optimum.params
            said, low, high = np.log2([size.value, size.low, size.high]).tolist()
            answered = made.answer == PREDICTED
            yield Asked(table.name, groups[place - 1][0], flops, best, said, low, high, answered)


def _row(name: str, asked: Sequence[Asked]) -> list[str]:
    told = [one for one in asked if one.answered]

    def share(values: Sequence[bool]) -> str:
        return f"{100 * np.mean(values):.0f} %" if values else ""

    return [
        name,
        str(len(asked)),
        share([one.inside for one in asked]),
        share([one.inside for one in told]),
        share([not one.answered for one in asked]),
        share([one.wide for one in asked]),
        f"{2 ** np.median([one.high - one.low for one in told]):.2f}" if told else "",
        f"{np.nanmedian([abs(one.said - one.best) for one in asked]):.2f}",
    ]


COLUMNS = ("table", "budgets", "inside", "where said", "cannot say", "said and wider than 8")
COLUMNS += ("width, a factor", "off, octaves")


def findings(asked: Sequence[Asked]) -> Findings:
    """A row a table, and all of them."""
    names = list(dict.fromkeys(one.table for one in asked))
    rows = [_row(name, [one for one in asked if one.table == name]) for name in names]
    return Findings(
        title="The best size of the next budgets of published tables, 95 % intervals",
        columns=COLUMNS,
        rows=[*rows, _row("all", asked)],
        notes=[],
        record={"asked": [asdict(one) for one in asked]},
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--only", default="", help="a part of the tables' names")
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(words)
    start, asked = time.perf_counter(), list[Asked]()
    for table in TABLES:
        if options.only in table.name and (options.data / table.file).exists():
            asked += play(table, options.data, options.draws)
    if not asked:
        print(f"no isoFLOPs in {options.data}")
        return
    findings(asked).tell(options.out, options.markdown)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
