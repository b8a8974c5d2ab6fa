"""Whether `sweeper judge` finds the rate and the batch of sizes that it did not see, on StepLaw.

1,911 runs of step-law/steplaw, 17 sizes with rates and batches. The largest size is told from those
of at most 537M parameters and 28B tokens; then each size from the sixteen others. A regret is what
the told rate and batch lose on a thin plate spline through the size's own runs, which no law uses.

    python scripts/bench/steplaw.py dense_lr_bs_loss.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scripts.bench.findings import Findings
from sweeper.evidence.rates.decision import RateTarget, law_of
from sweeper.evidence.rates.optima import RateCell, RateOptimum, optima_of
from sweeper.evidence.rates.reading import RateRuns, rate_runs
from sweeper.evidence.runs.grid import GridOptions
from sweeper.evidence.runs.read import read
from sweeper.stats.estimate import Array

COLUMNS = "loss=smooth loss,batch_size=bs,steps=ti"
OTHERS = ("loss",)
"""Columns beside these in which runs of one size differ."""
MOST_PARAMS, MOST_TOKENS = 5.4e8, 2.9e10


@dataclass(frozen=True)
class Told:
    """What was said of a size, beside what its own runs say, all log2.

    `held` is by the law alone, `held_measured` with the error of the size's own optimum.
    """

    name: str
    told: tuple[float, float]
    own: tuple[float, float]
    half: tuple[float, float]
    held: tuple[bool, bool]
    held_measured: tuple[bool, bool]
    regret: float


def regret(cell: RateCell, at: Array) -> float:
    """What `at` loses, by a smooth surface through the runs of a cell that lose at most 3 %."""
    from scipy.interpolate import RBFInterpolator

    near = cell.losses <= 1.03 * cell.losses.min()
    x = cell.x[near]
    surface = RBFInterpolator(x, cell.losses[near], smoothing=1.0)
    axes = [np.linspace(low, high, 60) for low, high in zip(x.min(0), x.max(0), strict=True)]
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    return float(surface(at[None])[0] - surface(grid).min())


def tell(runs: RateRuns, found: Sequence[RateOptimum], kept: Sequence[int], of: int) -> Told:
    """What the sizes `kept` say of another."""
    part, sizes = replace(runs, cells=tuple(runs.cells[i] for i in kept)), runs.cells[of].sizes
    params, tokens = float(sizes["params"]), float(sizes["tokens"])
    law = law_of(part, [found[i] for i in kept], RateTarget(params=params, tokens=tokens))
    assert law.law is not None, law.code
    drawn, own = law.law.at(runs.log2(sizes)), found[of]
    # Its own optimum has an error, too: that of a draw of each.
    taken = np.resize(np.arange(len(own.draws)), len(drawn))
    measured = drawn + own.draws[taken] - own.draws.mean(axis=0)
    ends = [np.percentile(each, [2.5, 97.5], axis=0) for each in (drawn, measured)]
    held = [(low <= own.best) & (own.best <= high) for low, high in ends]
    low, high = ends[0]
    return Told(
        name=f"{params / 1e6:.0f}M, {tokens / 1e9:.1f}B",
        told=tuple(drawn.mean(axis=0)),
        own=tuple(own.best),
        half=tuple((high - low) / 2),
        held=tuple(map(bool, held[0])),
        held_measured=tuple(map(bool, held[1])),
        regret=regret(runs.cells[of], drawn.mean(axis=0)),
    )


def bench(table: Path) -> Findings:
    """The largest size from the small ones, and each from the others."""
    runs = rate_runs(read(str(table), columns=COLUMNS, ignore=OTHERS), GridOptions())
    found = [one for one in optima_of(runs.cells) if one is not None]
    counts = [(cell.sizes["params"], cell.sizes["tokens"]) for cell in runs.cells]
    small = [i for i, (n, d) in enumerate(counts) if n <= MOST_PARAMS and d <= MOST_TOKENS]
    every, largest = range(len(counts)), max(range(len(counts)), key=counts.__getitem__)
    first = tell(runs, found, small, largest)
    out = [tell(runs, found, [j for j in every if j != i], i) for i in every]
    rows = [
        _row(f"{first.name}, by {len(small)} small sizes", first),
        *(_row(t.name, t) for t in out),
    ]
    smallest = found[min(every, key=counts.__getitem__)].best
    cell = runs.cells[largest]
    nearest = ((cell.x - smallest) ** 2).sum(axis=1).argmin()
    untransferred = float(cell.losses[nearest]) - found[largest].loss
    regrets = np.array([told.regret for told in out])

    def held(name: str, response: int) -> str:
        return f"{sum(getattr(t, name)[response] for t in out)} of {len(out)}"

    return Findings(
        title="StepLaw's sizes, each told from others",
        columns=["size", "rate told", "its own", "batch told", "its own", "inside 95 %", "loses"],
        rows=rows,
        notes=[
            f"the largest size from {len(small)} small ones loses {first.regret:.4f} nats; the "
            f"run nearest to the smallest one's optimum {untransferred:.4f}.",
            f"each left out: the rate's interval holds its own optimum in {held('held', 0)}, the "
            f"batch's in {held('held', 1)}; with the error of that optimum itself in "
            f"{held('held_measured', 0)} and {held('held_measured', 1)}.",
            f"each left out: loses {regrets.mean():.4f} nats on the average, "
            f"{regrets.max():.4f} at most.",
            "rates are log2; inside: rate, batch, with the error of the size's own optimum.",
        ],
        record={"largest": first.__dict__, "left_out": [told.__dict__ for told in out]},
    )


def _row(name: str, told: Told) -> list[str]:
    inside = ", ".join("yes" if held else "no" for held in told.held_measured)
    return [
        name,
        f"{told.told[0]:.2f} ±{told.half[0]:.2f}",
        f"{told.own[0]:.2f}",
        f"{2 ** told.told[1]:.0f} (x{2 ** told.half[1]:.2f})",
        f"{2 ** told.own[1]:.0f}",
        inside,
        f"{told.regret:.4f}",
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="dense_lr_bs_loss.csv of step-law/steplaw")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    given = parser.parse_args(words)
    bench(given.table).tell(given.out, given.markdown)


if __name__ == "__main__":
    main()
