"""How far predictions of a large run are off, and whether their intervals hold: made-up surfaces.

Run `python scripts/bench/predict.py --count 200`, some 20 minutes of a core. Losses are those of
Hoffmann et al. (arXiv:2203.15556, E 1.69, A 406.4, B 410.7, alpha 0.34, beta 0.28), times noise,
on grids as people train them: symmetric and lopsided, with a grid's centre that drifts, with a size
that was tuned badly, with a run that went wrong, with schedules cut off, with noisier small runs,
with horizons that are branches of one training; and once of a law whose terms are coupled. Beside
the law stands what parabolas over isoFLOPs give (approach 2 there). The target has ten times the
largest compute.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sweeper.evidence.predict.decision import PREDICTED, LossQuestion, predict_runs
from sweeper.evidence.runs.loss_runs import LossRuns
from sweeper.stats.power_law import Array

E, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.34, 0.28
RATIO = 20.0


def truth(params: Array, tokens: Array, p: float = 1.0) -> Array:
    """The loss without noise; its terms are joined by a p-norm."""
    above: Array = ((A / params**ALPHA) ** p + (B / tokens**BETA) ** p) ** (1 / p)
    return E + above


def optimal_size(flops: float, p: float = 1.0) -> float:
    """The best size of a budget; in closed form for p = 1 (arXiv:2203.15556, 4)."""
    scale = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    size = float(scale * (flops / 6) ** (BETA / (ALPHA + BETA)))
    if p == 1:
        return size
    sizes = size * np.exp(np.linspace(-3, 3, 60_001))
    return float(sizes[truth(sizes, flops / 6 / sizes, p).argmin()])


@dataclass(frozen=True)
class Kind:
    """A way of training runs: `make(random)` gives N, D and the log of each run's excess.

    `p` is that of the truth. `branches`: the horizons of a size are of one training.
    """

    name: str
    make: Callable[[np.random.Generator], tuple[Array, Array, Array]]
    p: float = 1.0
    branches: bool = False
    noise: float = 0.003


def grid(sizes: int, horizons: int, seeds: int, noise: float, fault: str = "") -> Kind:
    """Sizes by horizons, as a ladder of widths and steps gives."""

    def make(random: np.random.Generator) -> tuple[Array, Array, Array]:
        n, d = 2e7 * 2.5 ** np.arange(sizes), 5e8 * 2.0 ** np.arange(horizons)
        params, tokens = (a.ravel().repeat(seeds) for a in np.meshgrid(n, d))
        off = noise * random.standard_normal(len(params))
        match fault:
            case "small sizes thrice as noisy":
                off *= 1 + 2 * (params < 3e7)
            case "branches of a training a size":  # each training is off as a whole
                trained = np.searchsorted(n, params)
                off = 0.3 * off + noise * random.standard_normal(sizes)[trained]
        return params, tokens, off

    name = f"grid {sizes} x {horizons}, {seeds} seeds, noise {noise:.1%}"
    return Kind(
        name + f", {fault}" * bool(fault), make, branches=fault == "branches of a training a size"
    )


def ladder(sizes: int, seeds: int, noise: float) -> Kind:
    """One line: 20 tokens per parameter."""

    def make(random: np.random.Generator) -> tuple[Array, Array, Array]:
        params = (2e7 * 2.5 ** np.arange(sizes)).repeat(seeds)
        return params, RATIO * params, noise * random.standard_normal(len(params))

    name = f"ladder of {sizes} at 20 tokens per parameter, {seeds} seeds, noise {noise:.3%}"
    return Kind(name, make, noise=noise)


def isoflops(
    name: str, *, centre: float = 0.0, drift: float = 0.0, wide: float = 3.0, fault: str = ""
) -> Kind:
    """Five budgets of seven sizes; the centre in log2 off the best size, drifting by budget."""

    def make(random: np.random.Generator) -> tuple[Array, Array, Array]:
        budgets = 1e18 * 10 ** (0.5 * np.arange(5))
        params, flops = [], []
        for index, budget in enumerate(budgets):
            middle = optimal_size(budget) * 2 ** (centre + drift * index)
            params.append(middle * 2 ** np.linspace(-wide / 2, wide / 2, 7))
            flops.append(np.full(7, budget))
        n, c = np.concatenate(params), np.concatenate(flops)
        off = 0.004 * random.standard_normal(len(n))
        match fault:
            case "a rung tuned badly":
                off[14:21] += 0.01
            case "one run gone wrong":
                off[random.integers(len(off))] += 0.15
            case "schedules cut off":  # a third of the runs ended before their decay did
                off[random.random(len(off)) < 0.33] += 0.01
            case "heavy tails":
                off = 0.004 * random.standard_t(3, len(n))
        return n, c / (6 * n), off

    return Kind(name, make)


KINDS = (
    grid(4, 4, 1, 0.003),
    grid(4, 4, 3, 0.003),
    grid(3, 3, 2, 0.003),
    grid(5, 4, 2, 0.01),
    grid(5, 4, 2, 0.003, "small sizes thrice as noisy"),
    grid(6, 5, 1, 0.003, "branches of a training a size"),
    replace(grid(5, 5, 1, 0.003), name="grid 5 x 5, 1 seeds, noise 0.3%, terms coupled", p=1.6),
    *(ladder(5, 3, noise) for noise in (0.003, 0.001, 1e-4, 1e-5)),
    *(ladder(sizes, 1, 1e-5) for sizes in (4, 5)),
    replace(ladder(5, 3, 1e-5), name="ladder of 5, noise 0.001%, terms coupled", p=1.6),
    isoflops("isoFLOPs"),
    isoflops("isoFLOPs, centre off by 1.5 octaves", centre=1.5),
    isoflops("isoFLOPs, centre drifts by 0.5 a budget", centre=-1.0, drift=0.5),
    *(isoflops(f"isoFLOPs, {f}", fault=f) for f in ("a rung tuned badly", "one run gone wrong")),
    *(isoflops(f"isoFLOPs, {f}", fault=f) for f in ("schedules cut off", "heavy tails")),
)


def parabolas(params: Array, flops: Array, loss: Array, target: float) -> float:
    """Approach 2: a parabola in log N at every budget, a power law through their lowest points."""
    budgets = np.unique(flops)
    best = []
    for budget in budgets:
        at = flops == budget
        curve = np.polyfit(np.log(params[at]), loss[at], 2)
        best.append(-curve[1] / (2 * curve[0]))
    slope, level = np.polyfit(np.log(budgets), best, 1)
    return float(np.exp(level + slope * math.log(target)))


def play(kind: Kind, count: int) -> dict[str, float]:
    """Means over `count` surfaces of what the law says and what is."""
    rows = []
    for index in range(count):
        random = np.random.default_rng([index, len(kind.name)])
        params, tokens, off = kind.make(random)
        loss, flops = truth(params, tokens, kind.p) * np.exp(off), 6 * params * tokens
        cluster = (
            np.searchsorted(np.unique(params), params) if kind.branches else np.arange(len(off))
        )
        runs = LossRuns(params, tokens, loss, flops, cluster, [""] * len(loss))
        budget, along = 10 * float(flops.max()), kind.name.startswith("ladder")
        best = optimal_size(budget, kind.p)
        size = math.sqrt(budget / 6 / RATIO) if along else best
        horizon = budget / 6 / size
        asked = LossQuestion(
            params=size, tokens=horizon, flops=None if along else budget, draws=300
        )
        made = predict_runs(runs, asked)
        assert made.prediction is not None
        said, noise = made.prediction, kind.noise * random.standard_normal()
        real = float(truth(np.array(size), np.array(horizon), kind.p) * math.exp(noise))
        row = {
            "said": float(made.answer == PREDICTED),
            "covered": float(said.low <= real <= said.high),
            "half": (said.high - said.low) / 2 / real,
            "off": (said.loss - real) / (real - E),
            "hits": float(np.mean([test.hit for test in made.back_test] or [math.nan])),
        }
        if row["said"]:
            row["covered where said"] = row["covered"]
        if not along and kind.p == 1:
            for name, true in (("E", E), ("alpha", ALPHA), ("beta", BETA)):
                value = getattr(made.law, name)
                row[f"{name} covered"] = float(value.low <= true <= value.high)
        if made.optimum is not None:
            found = made.optimum.params
            row["best size covered"] = float(found.low <= best <= found.high)
            row["best size off"] = math.log2(found.value / best)
        if kind.name.startswith("iso"):
            row["approach 2 off"] = math.log2(
                parabolas(params, np.round(flops, -12), loss, budget) / best
            )
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {n: float(np.nanmean([row[n] for row in rows if n in row])) for n in names}


def main() -> None:
    """Print a line a kind, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", default="", help="a part of the kinds' names")
    arguments = parser.parse_args()
    head = [
        "kind",
        "predicted",
        "covered",
        "where predicted",
        "half interval",
        "off",
        "back-test hits",
    ]
    head += ["E, alpha, beta covered", "best size covered", "off (log2)", "approach 2 off (log2)"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for kind in KINDS:
        if arguments.only not in kind.name:
            continue
        start = time.perf_counter()
        m = play(kind, arguments.count)
        nan = math.nan
        cells = [
            f"{100 * m['said']:.0f} %",
            f"{100 * m['covered']:.0f} %",
            f"{100 * m.get('covered where said', nan):.0f} %",
            f"{100 * m['half']:.2f} %",
            f"{100 * m['off']:+.2f} %",
            f"{100 * m['hits']:.0f} %",
            ", ".join(f"{100 * m.get(f'{n} covered', nan):.0f}" for n in ("E", "alpha", "beta")),
            f"{100 * m.get('best size covered', nan):.0f} %",
            f"{m.get('best size off', nan):+.3f}",
            f"{m.get('approach 2 off', nan):+.3f}",
        ]
        seconds = time.perf_counter() - start
        line = f"| {kind.name} | {' | '.join(cells)} | <!-- {seconds:.0f} s -->"
        print(
            line.replace("nan %", "").replace("nan, nan, nan", "").replace("+nan", ""), flush=True
        )


if __name__ == "__main__":
    main()
