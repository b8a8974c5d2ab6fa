"""How far predictions of published runs are off, and whether their intervals hold.

    python scripts/bench/tables.py ../shared/data            # some minutes of a core
    python scripts/bench/tables.py ../shared/data --only porian --draws 100
    python scripts/bench/tables.py --kept build/tables.json --leave-one-out

What is seen is kept, so that constants can be chosen again in a second: `--leave-one-out` shows of
each table what the constants give that the other tables choose, and which those are.

Every table is cut by compute into runs that the law is fitted to and larger ones that are held
out; where, stands in `TABLES`, and was written before anything was tuned by it. Beside the law
stands a plain curve fit (least squares of L = E + A/N^a + B/D^b), and beside the best size of a
budget the parabola through that budget's own runs. Without the data nothing is done.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from findings import Findings
from scipy.optimize import least_squares

from sweeper.evidence.predict.budget import optimum
from sweeper.evidence.predict.decision import (
    PREDICTED,
    UNDECIDED,
    BackTestedLaw,
    LossQuestion,
    asked_of,
    study_law,
    target_of,
)
from sweeper.evidence.predict.forecast import BEFORE, NARROW, OFF, RungMiss, widening
from sweeper.evidence.predict.regime import choose_runs, tried
from sweeper.evidence.runs.loss_runs import LossRuns, law_runs, loss_runs_of
from sweeper.evidence.runs.read import read
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
    """A held-out run beside what was said of it, all losses in logs; `plain`: the plain fit's.

    `low` and `high` are those of a law that no back-test widened; `widened` is by how much they
    were. `today` is what the compute of the largest run gives.
    """

    ratio: float
    flops: float
    loss: float
    said: float
    low: float
    high: float
    today: float
    widened: float
    answered: bool
    plain: float

    @property
    def ends(self) -> tuple[float, float]:
        """Of the interval that was said."""
        low, high = (self.said + self.widened * (end - self.said) for end in (self.low, self.high))
        return low, high

    @property
    def inside(self) -> bool:
        """Whether it holds the run."""
        return self.ends[0] <= self.loss <= self.ends[1]

    @property
    def half(self) -> float:
        """Half of it."""
        return (self.ends[1] - self.ends[0]) / 2


@dataclass(frozen=True)
class OneLaw:
    """A law of a split with its back-tests, (kept, rung, z) each, and the runs that it spoke of."""

    fitted: int
    rungs: int
    tried: tuple[tuple[int, int, list[float]], ...]
    held: tuple[Held, ...]

    def widened(self, before: float, off: float) -> OneLaw:
        """As it would be with other constants."""
        tried = [RungMiss(kept, rung, np.array(z)) for kept, rung, z in self.tried]
        by = widening(tried, self.rungs, before=before, off=off)
        held = [replace(run, widened=by) for run in self.held]
        failed = False
        for kept in range(self.rungs - 2, self.rungs):
            z = np.concatenate([[], *(np.abs(t.z) for t in tried if t.kept == kept)])
            some = widening(tried, kept, before=before, off=off)
            failed |= len(z) > 0 and np.mean(z <= 1.96 * some) < 0.5
        held = [replace(run, answered=not failed and settled(run)) for run in held]
        return replace(self, held=tuple(held))


def settled(run: Held) -> bool:
    """`sweeper.evidence.predict.forecast.settled`, of what was kept."""
    half = 0.5 * (math.exp(run.ends[1]) - math.exp(run.ends[0]))
    value = math.exp(run.said)
    return half <= max(math.exp(run.today) - value, NARROW * value)


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
    laws: tuple[OneLaw, ...]
    sizes: tuple[Size, ...]
    seconds: float

    @property
    def held(self) -> tuple[Held, ...]:
        """All runs that were held out."""
        return tuple(run for law in self.laws for run in law.held)

    @classmethod
    def read(cls, record: dict[str, Any]) -> Split:
        """As it was kept."""
        laws = [
            OneLaw(
                law["fitted"],
                law["rungs"],
                tuple((kept, rung, z) for kept, rung, z in law["tried"]),
                tuple(Held(**run) for run in law["held"]),
            )
            for law in record["laws"]
        ]
        sizes = tuple(Size(**size) for size in record["sizes"])
        return cls(record["table"], record["upto"], tuple(laws), sizes, record["seconds"])


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


def laws_of(near: LossRuns, far: LossRuns, draws: int) -> Iterator[tuple[BackTestedLaw, list[int]]]:
    """The laws that the runs to come ask for, one for those of the same runs, and their places."""
    alike = dict[object, list[int]]()
    rests_on = dict[bytes, list[int]]()
    asked = [
        LossQuestion(params=n, tokens=d, draws=draws)
        for n, d in zip(far.params.tolist(), far.tokens.tolist(), strict=True)
    ]
    for place, question in enumerate(asked):
        alike.setdefault(tried(*asked_of(near, question)), []).append(place)
    for places in alike.values():
        kept, _ = choose_runs(near, *asked_of(near, asked[places[0]]))
        rests_on.setdefault(kept.params.tobytes() + kept.tokens.tobytes(), []).extend(places)
    for places in rests_on.values():
        yield study_law(near, asked[places[0]]), places


def play(table: Published, folder: Path, draws: int) -> Iterator[Split]:
    """What is said of a table's held-out runs."""
    runs = table.runs(folder)
    for upto in table.splits:
        near, far = runs.only(runs.flops <= upto), runs.only(runs.flops > upto)
        start = time.perf_counter()
        plain = np.log(plain_fit(near)(far.params, far.tokens))
        laws = []
        for studied, places in laws_of(near, far, draws):
            law, bare = studied.law, replace(studied.law, widened=1.0)
            held = []
            for i in places:
                params, tokens, flops = (float(v[i]) for v in (far.params, far.tokens, far.flops))
                target = target_of(law, LossQuestion(params=params, tokens=tokens))
                reasons = studied.reasons(law.loss(params, tokens), target, None)
                answer = UNDECIDED if reasons else PREDICTED
                loss, back = bare.loss(params, tokens), max(flops / near.flops.max(), 1.0)
                today = law.mean_loss(*law.scaled(params, tokens, np.array([1 / back])))[0]
                held.append(
                    Held(
                        ratio=tokens / params,
                        flops=flops,
                        loss=math.log(far.loss[i]),
                        said=math.log(loss.value),
                        low=math.log(loss.low),
                        high=math.log(loss.high),
                        today=math.log(today),
                        widened=law.widened,
                        answered=answer == PREDICTED,
                        plain=float(plain[i]),
                    )
                )
            tried = tuple((t.kept, t.rung, t.z.tolist()) for t in studied.tried)
            laws.append(OneLaw(len(law.runs), len(studied.rungs), tried, tuple(held)))
        sizes = []
        own = best_sizes(near)
        line = np.polyfit(np.log2([c for c, _ in own]), [b for _, b in own], 1) if own[2:] else None
        for flops, best in best_sizes(far) if line is not None else ():
            asked = study_law(near, LossQuestion(flops=flops, draws=draws))
            found = optimum(asked.law, flops).params
            low, said_size, high = np.log2([found.low, found.value, found.high])
            parabolas = float(np.polyval(line, math.log2(flops)))
            sizes.append(Size(flops, best, said_size, low, high, parabolas))
        seconds = time.perf_counter() - start
        yield Split(table.name, upto, tuple(laws), tuple(sizes), seconds)


def _row(name: str, splits: Sequence[Split]) -> list[str]:
    held = [run for split in splits for run in split.held]
    sizes = [size for split in splits for size in split.sizes]
    inside = [run.inside for run in held]
    told = [i for run, i in zip(held, inside, strict=True) if run.answered]
    miss = [abs(run.said - run.loss) for run in held]
    plain = [abs(run.plain - run.loss) for run in held]
    half = [run.half for run in held]
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
    shares = [100 * np.mean([r.inside for r in runs]) for runs in held.values()]
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


BEFORES, OFFS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0), (1.0, 1.25, 1.5, 1.75)
"""Constants that are tried."""
CLAIMED, LOWEST = 0.95, 0.85
"""The share of runs that are to lie inside, tables alike, and that of every table."""


Figures = dict[tuple[float, float], dict[str, tuple[float, list[float]]]]


def figures_of(splits: Sequence[Split]) -> Figures:
    """Under all constants of every table the share of runs inside, and half widths."""
    found: Figures = {}
    for constants in product(BEFORES, OFFS):
        tables = dict[str, list[Held]]()
        for split in splits:
            laws = [law.widened(*constants) for law in split.laws]
            tables.setdefault(split.table, []).extend(run for law in laws for run in law.held)
        found[constants] = {
            table: (float(np.mean([run.inside for run in runs])), [run.half for run in runs])
            for table, runs in tables.items()
        }
    return found


def chosen(figures: Figures, without: str = "") -> tuple[float, float]:
    """The constants by which as many runs lie inside as claimed, in least width."""

    def missed(constants: tuple[float, float]) -> tuple[float, float]:
        some = [of for table, of in figures[constants].items() if table != without]
        shares = [share for share, _ in some]
        half = float(np.median([half for _, halves in some for half in halves]))
        short = max(CLAIMED - float(np.mean(shares)), 0.0) + max(LOWEST - min(shares), 0.0)
        return round(short, 4), half

    return min(figures, key=missed)


def left_one_out(splits: Sequence[Split]) -> tuple[list[Split], list[str]]:
    """Every table with the constants that the others choose, and how often which were chosen."""
    found, counts = list[Split](), dict[tuple[float, float], int]()
    figures = figures_of(splits)
    for table in dict.fromkeys(split.table for split in splits):
        constants = chosen(figures, table)
        counts[constants] = counts.get(constants, 0) + 1
        found += [
            replace(split, laws=tuple(law.widened(*constants) for law in split.laws))
            for split in splits
            if split.table == table
        ]
    named = ", ".join(f"{before:g} and {off:g} ({n})" for (before, off), n in counts.items())
    whole = "{:g} and {:g}".format(*chosen(figures))
    return found, [
        f"constants chosen without the table: {named}; by all tables {whole}; "
        f"the law's are {BEFORE:g} and {OFF:g}"
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--only", default="", help="a part of the tables' names")
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--kept", type=Path, help="where what is seen is kept, and read again")
    parser.add_argument("--leave-one-out", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args(words)
    lines = asked.kept.read_text().splitlines() if asked.kept and asked.kept.exists() else []
    splits = [Split.read(json.loads(line)) for line in lines]
    for table in TABLES:
        if asked.only not in table.name or not (asked.data / table.file).exists():
            continue
        if any(split.table == table.name for split in splits):
            continue
        new = list(play(table, asked.data, asked.draws))
        splits += new
        if asked.kept:
            with asked.kept.open("a") as kept:
                kept.writelines(json.dumps(asdict(split)) + "\n" for split in new)
        print(f"{table.name}: {new[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    splits = [split for split in splits if asked.only in split.table]
    if not splits:
        print(f"no tables in {asked.data}")
        return
    notes = []
    if asked.leave_one_out:
        splits, notes = left_one_out(splits)
    told = findings(splits)
    replace(told, notes=[*told.notes, *notes]).tell(asked.out, asked.markdown)


if __name__ == "__main__":
    main()
