"""How far predictions of published runs are off, and whether their intervals hold.

    python scripts/bench/tables.py ../shared/data            # some minutes of a core
    python scripts/bench/tables.py ../shared/data --only porian --draws 100

Every table is cut by compute into runs that the law is fitted to and larger ones that are held
out; where, stands in `TABLES`, and was written before anything was tuned by it. Beside the law
stands a plain curve fit (least squares of L = E + A/N^a + B/D^b), and beside the best size of a
budget the parabola through that budget's own runs. Without the data nothing is done.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas
from findings import Findings
from scipy.optimize import least_squares

from sweeper.decide.budget import optimum
from sweeper.decide.loss import PREDICTED, LossQuestion, study_law
from sweeper.runs.loss_runs import LossRuns, law_runs, loss_runs_of
from sweeper.runs.read import read
from sweeper.stats.power_law import Array

LEAST_RUNS, BRACKET = 5, 1.5
"""Runs that a budget's parabola takes, and octaves that they reach beyond its lowest at least."""


@dataclass(frozen=True)
class Published:
    """A table: its file, its rows, which column is what, and FLOPs up to which a law is fitted."""

    name: str
    file: str
    splits: tuple[float, ...]
    rows: str = ""
    columns: str = "params=params,tokens=tokens,flops=budget,loss=loss"
    prepare: Callable[[pandas.DataFrame], pandas.DataFrame] = lambda frame: frame

    def runs(self, folder: Path) -> LossRuns:
        """As `sweeper predict` reads them."""
        frame = pandas.read_csv(folder / self.file)
        frame = self.prepare(frame.query(self.rows) if self.rows else frame)
        named = dict(word.split("=") for word in self.columns.split(","))
        frame = frame[[*named.values()]].drop_duplicates().reset_index(drop=True)
        return loss_runs_of(law_runs(read(frame, columns=self.columns)))


def tuned(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Of every size and horizon the lowest smoothed loss over rates and batches."""
    return frame.groupby(["N", "D"], as_index=False)["smooth loss"].min()


def named(frame: pandas.DataFrame) -> pandas.DataFrame:
    """A shape's horizons are of one training."""
    shape = frame.width.astype(str) + "x" + frame.depth.astype(str)
    return frame.assign(shape=shape)


EPOCH = "params=Model Size,flops=Training FLOP,loss=loss"
PORIAN = [
    *("owt2/base/long/kaplan/kaplan", "owt2/base/long/kaplan/standard"),
    *("owt2/base/short/chinchilla/standard", "owt2/base/short/kaplan/standard"),
    *("owt2/tuned/short/const/standard", "rw/base/long/kaplan/attention"),
    *("rw/base/long/kaplan/kaplan", "rw/base/long/kaplan/standard"),
    *("rw/base/short/chinchilla/attention", "rw/base/short/chinchilla/standard"),
    *("rw/base/short/kaplan/attention", "rw/base/short/kaplan/standard"),
    *("rw/tuned/long/const/kaplan", "rw/tuned/short/const/attention"),
    "rw/tuned/short/const/standard",
]
TABLES = (
    *(
        Published(
            f"porian {setting}",
            "scaling/porian_isoflops.csv",
            (4.5e17, 3.5e18),
            " and ".join(
                f"{column} == '{value}'"
                for column, value in zip(
                    ("dataset", "hparams", "warmup", "decay", "count"),
                    setting.split("/"),
                    strict=True,
                )
            ),
        )
        for setting in PORIAN
    ),
    Published("chinchilla, isoFLOPs", "scaling/chinchilla_scalefit_isoflops.csv", (7e19, 3.5e20)),
    Published("chinchilla, a figure", "scaling/chinchilla_epoch.csv", (1e20, 1e21), columns=EPOCH),
    Published("marin comma", "scaling/marin_comma_isoflops.csv", (3.5e19, 1e20)),
    Published(
        "gemstone shapes",
        "scaling/shapes_cooled.csv",
        (4e19, 2e20),
        columns="params=params,tokens=tokens,loss=loss,run=shape",
        prepare=named,
    ),
    Published(
        "steplaw, tuned cells",
        "steplaw/dense_lr_bs_loss.csv",
        (5e19,),
        columns="params=N,tokens=D,loss=smooth loss",
        prepare=tuned,
    ),
)


@dataclass(frozen=True)
class Held:
    """A held-out run beside what was said of it, all losses in logs; `plain`: the plain fit's."""

    ratio: float
    flops: float
    loss: float
    said: float
    low: float
    high: float
    answered: bool
    plain: float


@dataclass(frozen=True)
class Size:
    """The best size of a held-out budget, log2: by its own runs, the law, and approach 2."""

    flops: float
    best: float
    said: float
    low: float
    high: float
    parabolas: float


@dataclass(frozen=True)
class Split:
    """A table cut at `upto` FLOPs, what was said of the rest, and in how many seconds."""

    table: str
    upto: float
    fitted: int
    held: tuple[Held, ...]
    sizes: tuple[Size, ...]
    seconds: float


def plain_fit(runs: LossRuns) -> Callable[[Array, Array], Array]:
    """L = E + A/N^a + B/D^b by least squares, the best of several starts."""
    n, d = np.log(runs.params / runs.params.mean()), np.log(runs.tokens / runs.tokens.mean())

    def losses(x: Array, n: Array, d: Array) -> Array:
        e, a, b = np.exp(np.clip(x[:3], -30, 10))
        law: Array = e + a * np.exp(-x[3] * n) + b * np.exp(-x[4] * d)
        return law

    lowest = math.log(runs.loss.min())
    fits = [
        least_squares(
            lambda x: losses(x, n, d) - runs.loss, [lowest + e, lowest - 1, lowest - 1, a, b]
        )
        for e, a, b in product((-1.0, -0.2), (0.2, 0.5), (0.2, 0.5))
    ]
    best = min(fits, key=lambda fit: fit.cost).x
    return lambda params, tokens: losses(
        best, np.log(params / runs.params.mean()), np.log(tokens / runs.tokens.mean())
    )


def best_of_budget(size: Array, loss: Array) -> float | None:
    """log2 of the best size by a parabola about the lowest of a budget's runs; None at an end."""
    x, y = np.log2(size), np.log(loss)
    at = x[y.argmin()]
    near = np.argsort(np.abs(x - at), kind="stable")[: LEAST_RUNS + 2]
    if len(near) < LEAST_RUNS or at - x.min() < BRACKET or x.max() - at < BRACKET:
        return None
    curve = np.polyfit(x[near] - at, y[near], 2)
    return None if curve[0] <= 0 else float(at - curve[1] / (2 * curve[0]))


def budgets_of(runs: LossRuns) -> Iterator[tuple[float, LossRuns]]:
    """Runs of about one compute."""
    index = np.round(np.log(runs.flops) / 0.1)
    for budget in np.unique(index):
        some = runs.only(index == budget)
        yield float(np.exp(np.log(some.flops).mean())), some


def best_sizes(runs: LossRuns) -> list[tuple[float, float]]:
    """Budgets that bracket their best size, and log2 of it."""
    found = [(c, best_of_budget(some.params, some.loss)) for c, some in budgets_of(runs)]
    return [(c, best) for c, best in found if best is not None]


def play(table: Published, folder: Path, draws: int) -> Iterator[Split]:
    """What is said of a table's held-out runs."""
    runs = table.runs(folder)
    for upto in table.splits:
        near, far = runs.only(runs.flops <= upto), runs.only(runs.flops > upto)
        start = time.perf_counter()
        law = study_law(near, LossQuestion(draws=draws))
        said = [law.asked(n, d) for n, d in zip(far.params, far.tokens, strict=True)]
        plain = np.log(plain_fit(near)(far.params, far.tokens))
        held = [
            Held(
                ratio=float(far.tokens[i] / far.params[i]),
                flops=float(far.flops[i]),
                loss=math.log(far.loss[i]),
                said=math.log(loss.value),
                low=math.log(loss.low),
                high=math.log(loss.high),
                answered=answer == PREDICTED,
                plain=float(plain[i]),
            )
            for i, (answer, loss) in enumerate(said)
        ]
        sizes = []
        own = best_sizes(near)
        line = np.polyfit(np.log2([c for c, _ in own]), [b for _, b in own], 1) if own[2:] else None
        for flops, best in best_sizes(far) if line is not None else ():
            found = optimum(law.law, flops, law.rungs).params
            low, said_size, high = np.log2([found.low, found.value, found.high])
            parabolas = float(np.polyval(line, math.log2(flops)))
            sizes.append(Size(flops, best, said_size, low, high, parabolas))
        seconds = time.perf_counter() - start
        yield Split(table.name, upto, len(near), tuple(held), tuple(sizes), seconds)


def _row(name: str, splits: Sequence[Split]) -> list[str]:
    held = [run for split in splits for run in split.held]
    sizes = [size for split in splits for size in split.sizes]
    inside = [run.low <= run.loss <= run.high for run in held]
    told = [i for run, i in zip(held, inside, strict=True) if run.answered]
    miss = [abs(run.said - run.loss) for run in held]
    plain = [abs(run.plain - run.loss) for run in held]
    half = [(run.high - run.low) / 2 for run in held]
    right = [size.low <= size.best <= size.high for size in sizes]

    def share(values: Sequence[bool]) -> str:
        return f"{100 * np.mean(values):.0f} %" if values else ""

    def middle(values: Sequence[float], form: str = "{:.2f} %") -> str:
        return form.format(float(np.median(values))) if values else ""

    return [
        name,
        str(len(held)),
        share(inside),
        share(told),
        share([not run.answered for run in held]),
        middle([100 * h for h in half]),
        middle([100 * m for m in miss]),
        middle([100 * m for m in plain]),
        f"{sum(right)} of {len(right)}" if sizes else "",
        middle([abs(s.said - s.best) for s in sizes], "{:.2f}"),
        middle([abs(s.parabolas - s.best) for s in sizes], "{:.2f}"),
        f"{sum(split.seconds for split in splits):.0f}",
    ]


COLUMNS = ("table", "held out", "inside", "where said", "cannot say", "half interval", "miss")
COLUMNS += ("plain fit's", "best size inside", "off, octaves", "approach 2's", "seconds")


def findings(splits: Sequence[Split]) -> Findings:
    """A row a table, and all of them."""
    names = list(dict.fromkeys(split.table for split in splits))
    of = {name: [split for split in splits if split.table == name] for name in names}
    rows = [_row(name, of[name]) for name in names]
    held = {name: [run for split in of[name] for run in split.held] for name in names}
    shares = [100 * np.mean([r.low <= r.loss <= r.high for r in runs]) for runs in held.values()]
    groups = [split.held for split in splits]
    won = [
        np.median([abs(r.said - r.loss) for r in runs])
        < np.median([abs(r.plain - r.loss) for r in runs])
        for runs in groups
    ]
    sizes = [size for split in splits for size in split.sizes]
    right = sum(size.low <= size.best <= size.high for size in sizes)
    notes = [
        f"inside with tables weighed alike: {np.mean(shares):.1f} %, the lowest {min(shares):.0f}",
        f"a smaller miss than the plain fit's in {sum(won)} of {len(won)} splits",
        f"best size inside: {right} of {len(sizes)}",
    ]
    record = {"splits": [asdict(split) for split in splits]}
    return Findings(
        title="Held-out runs of published tables, 95 % intervals",
        columns=COLUMNS,
        rows=[*rows, _row("all", splits)],
        notes=notes,
        record=record,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--only", default="", help="a part of the tables' names")
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args(words)
    splits = []
    for table in TABLES:
        if asked.only in table.name and (asked.data / table.file).exists():
            splits += play(table, asked.data, asked.draws)
            print(f"{table.name}: {splits[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    if not splits:
        print(f"no tables in {asked.data}")
        return
    findings(splits).tell(asked.out, asked.markdown)


if __name__ == "__main__":
    main()
