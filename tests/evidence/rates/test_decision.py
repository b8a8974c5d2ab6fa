import math
from functools import cache
from itertools import product

import numpy as np
import pandas
import pytest

from sweeper.errors import BadInput
from sweeper.evidence.rates.decision import CellOptimum, PowerLaw, RateLaw, RateTarget, law_of
from sweeper.evidence.rates.optima import RateCell, optima_of
from sweeper.evidence.rates.page import rates_lines
from sweeper.evidence.rates.reading import RateRuns, of_two_sizes, rate_runs
from sweeper.evidence.runs.grid import GridOptions
from sweeper.evidence.runs.read import read
from sweeper.stats.estimate import Array

LENGTH = 1024


def rate_law(runs: RateRuns, target: RateTarget | None = None) -> RateLaw:
    return law_of(runs, optima_of(runs.cells), target)


def best(params: float, tokens: float) -> tuple[float, float]:
    n, d = math.log2(params / 1e8), math.log2(tokens / 1e10)
    return -8.5 - 0.9 * n + 0.3 * d, 7 - 0.4 * n + 0.6 * d


def frame(batches: tuple[int, ...]) -> pandas.DataFrame:
    generator, rows, rates = np.random.default_rng(0), [], np.arange(-13.0, -5.0)
    sizes = product((1e8, 2e8, 4e8), (5e9, 1e10, 2e10))
    for (params, tokens), log2_batch, log2 in product(sizes, batches, rates):
        eta, batch = best(params, tokens)
        offset = log2_batch - batch
        loss = 2.5 + 0.02 * (log2 - eta - 0.5 * min(offset, 0.0)) ** 2 + 0.01 * offset**2
        row = {"params": params, "tokens": tokens, "batch_size": 2**log2_batch, "lr": 2.0**log2}
        rows.append(row | {"loss": loss + generator.normal(0, 0.001)})
    table = pandas.DataFrame(rows)
    return table.assign(steps=(table.tokens / LENGTH / table.batch_size).round())


@cache
def runs_of(batches: tuple[int, ...]) -> RateRuns:
    return rate_runs(read(frame(batches)), GridOptions())


def test_rate_and_batch_of_a_larger_model_and_the_ridge() -> None:
    runs = runs_of((4, 5, 6, 7, 8, 9))
    assert runs.tells_batch and runs.varied == ("params", "tokens")
    assert runs.length == pytest.approx(LENGTH, rel=0.01) and len(runs.cells) == 9
    law = rate_law(runs, RateTarget(params=8e8, tokens=4e10))
    eta, batch = best(8e8, 4e10)
    assert law.code == "predicted" and law.usable == 9 and law.prediction is not None
    predicted = law.prediction
    assert predicted.eta.low <= eta <= predicted.eta.high
    assert predicted.batch.low <= batch <= predicted.batch.high
    assert abs(predicted.eta.value - eta) < 0.25 and abs(predicted.batch.value - batch) < 0.25
    powers = {(p.of, p.axis): p.exponent.value for p in law.powers}
    truth = {("eta", "params"): -0.9, ("eta", "tokens"): 0.3}
    truth |= {("batch", "params"): -0.4, ("batch", "tokens"): 0.6}
    assert powers == pytest.approx(truth, abs=0.15)
    # Half the batch takes twice the steps, and a smaller rate.
    asked = rate_law(runs, RateTarget(params=8e8, tokens=4e10, batch=64))
    assert "at the batch of 64; the best batch is " in rates_lines(asked)[-1]
    chosen = asked.prediction
    row = next(each for each in chosen.ridge if each.batch == 64)
    assert row.steps == pytest.approx(4e10 / LENGTH / 64, rel=0.01)
    assert chosen.eta == row.eta and row.loss.value == pytest.approx(0, abs=1e-9)
    assert chosen.eta.value == pytest.approx(eta + 0.5 * (6 - batch), abs=0.3)
    with pytest.raises(BadInput, match="known by their params"):
        rate_law(runs, RateTarget(width=512))


def test_one_batch_tells_the_rate_at_it_alone() -> None:
    runs = runs_of((7,))
    assert not runs.tells_batch and runs.varied == ("params", "tokens")
    law = rate_law(runs, RateTarget(params=8e8, tokens=4e10))
    eta, batch = best(8e8, 4e10)
    assert law.prediction is not None and law.prediction.batch is None
    at = eta + 0.5 * min(7 - batch, 0)
    assert law.prediction.eta.low <= at <= law.prediction.eta.high
    with pytest.raises(BadInput, match="one value of batch size"):
        rate_law(runs, RateTarget(batch=1024))


def test_ends_are_bounds_and_few_sizes_say_nothing() -> None:
    table = frame((4, 5, 6, 7, 8, 9))
    cut = (table["params"] == 4e8) & (table["lr"] < 2.0**-9.6)
    two = table[~cut].assign(wide=table["params"] > 1e8)
    law = rate_law(rate_runs(read(two), GridOptions()))
    assert "one for each size: wide" in str(law.notes)
    ends = {cell.eta_end for cell in law.cells if cell.sizes["params"] == 400_000_000}
    assert -1 in ends and law.usable < 9
    assert law.code == "law" and law.powers[0].exponent.value == pytest.approx(-0.9, abs=0.3)
    small = table[(table["params"] == 1e8)]
    assert rate_law(rate_runs(read(small[small["tokens"] < 2e10]), GridOptions())).code == (
        "too_few_cells"
    )


def test_which_tables_are_of_two_sizes() -> None:
    table = frame((7,))
    assert of_two_sizes(read(table))
    assert not of_two_sizes(read(table[table["params"] == 1e8]))
    along = table[table["tokens"] == 50 * table["params"]]
    assert not of_two_sizes(read(along)) and not of_two_sizes(read(table.drop(columns="lr")))


def test_a_best_that_may_lie_inside_its_end_is_bounded_by_less_than_its_estimate() -> None:
    generator, cells_made = np.random.default_rng(0), 12
    x = np.array([(rate, batch) for rate in range(-9, -5) for batch in range(4, 9)], float)
    rates = generator.uniform(-6.8, -6.1, cells_made)
    bests = np.column_stack([rates, np.full(cells_made, 6.2)])
    cells = []
    for best_there in bests:
        losses = 2.5 + ((x - best_there) ** 2 * (0.01, 0.005)).sum(axis=1)
        cells.append(RateCell({}, x, losses + generator.normal(0, 0.003, len(x))))
    fits = optima_of(cells)
    flagged = [
        (i, optimum)
        for i, optimum in enumerate(fits)
        if optimum is not None and optimum.ends[0] > 0
    ]
    beyond = [bests[i, 0] >= optimum.bound(0) for i, optimum in flagged]
    assert len(flagged) >= 3 and np.mean(beyond) >= 0.9
    place, optimum = flagged[0]
    cell = CellOptimum.of(cells[place], optimum)
    assert cell.eta.value == cell.eta.low == optimum.bound(0) <= optimum.best[0]


def test_tokens_that_nobody_names_go_with_the_model_as_the_runs_have_them() -> None:
    alone = frame((7,))
    line = pandas.concat(
        alone[(alone.params == n) & (alone.tokens == d)]
        for n, d in ((1e8, 5e9), (2e8, 1e10), (4e8, 2e10))
    )
    more = line.assign(params=line.params * 8, tokens=line.tokens * 8)
    runs = rate_runs(read(pandas.concat([line, more]).reset_index(drop=True)), GridOptions())
    law = rate_law(runs, RateTarget(params=1e10))
    assert law.prediction is not None and law.prediction.horizon == pytest.approx(5e11)
    assert "50 a parameter" in str(law.notes) and "to_tokens" in str(law.notes)
    named = rate_law(runs, RateTarget(params=1e10, tokens=2e11))
    assert named.prediction is not None and named.prediction.horizon == 2e11
    # Where both were varied apart, those of the largest run are taken, and it is said.
    apart = rate_law(runs_of((4, 5, 6, 7, 8, 9)), RateTarget(params=8e8))
    assert apart.prediction is not None and apart.prediction.horizon == 2e10
    assert "largest" in str(apart.notes)


def made(optimum: tuple[float, float], seed: int, noise: float = 0.002) -> RateCell:
    """Runs on a grid around (-9, 7): below the best batch the best rate falls with it."""
    rates, batches = np.arange(-12.0, -5.5, 0.5), np.arange(4.0, 10.5)
    x = np.stack(np.meshgrid(rates, batches, indexing="ij"), axis=-1).reshape(-1, 2)
    offset = x[:, 1] - optimum[1]
    ridge = 0.6 * offset - 0.55 * (np.logaddexp(0, 3 * offset) - np.log(2)) / 3
    away = x[:, 0] - optimum[0] - ridge
    valley = 0.02 * (np.expm1(0.5 * away) - 0.5 * away) * 8 / 2 + 0.008 * offset**2
    noises = np.random.default_rng(seed).normal(0, noise, len(x))
    losses = np.where(away > 4, np.inf, 2.5 + valley + noises)
    return RateCell({}, x, losses)


def test_intervals_hold_optima_and_ends_are_told() -> None:
    generator = np.random.default_rng(0)
    optima = [tuple(generator.uniform((-9.5, 6.0), (-8.0, 8.0))) for _ in range(6)]
    fits = optima_of([made(optimum, i) for i, optimum in enumerate(optima)])
    inside_both, off = [], []
    for optimum, fit in zip(optima, fits, strict=True):
        assert fit is not None and fit.ends == (0, 0)
        assert fit.noise == pytest.approx(0.002, rel=0.3)
        low, high = np.percentile(fit.draws, [2.5, 97.5], axis=0)
        inside_both.append((low <= optimum) & (np.asarray(optimum) <= high))
        off.append(fit.best - optimum)
    assert (np.mean(inside_both, axis=0) >= 0.85).all()
    assert (np.abs(np.mean(off, axis=0)) < 0.1).all()
    beyond = optima_of([made((-5.0, 7.0), 1), made((-9.0, 11.0), 2), made((-9.0, 7.0), 3)])
    assert [fit and fit.ends for fit in beyond] == [(1, 0), (0, 1), (0, 0)]
    few = made((-9.0, 7.0), 1)
    assert optima_of([RateCell({}, few.x[:5], few.losses[:5]), few])[0] is None


def table(generator: np.random.Generator, between: float, within: float) -> tuple[Array, Array]:
    """Sizes [models x horizons and one beyond], and measured optima of rate and batch."""
    models = np.append(np.repeat(np.arange(4.0), 4), 5)
    horizons = np.append(np.tile(np.arange(4.0), 4), 1)
    x = np.column_stack([27 + models, 32 + models + horizons])
    off = generator.normal(0, between, (6, 2))[models.astype(int)]
    middle = x - x[:-1].mean(axis=0)
    optima = [-9, 7] + middle @ [[-0.9, -0.4], [0.3, 0.6]] + off
    optima += generator.normal(0, within, (17, 2))
    optima[:-1] += generator.normal(size=(16, 2)) * [0.06, 0.08]
    return x, optima


def test_a_bound_moves_a_law_and_counts_as_no_value() -> None:
    x, optima = table(np.random.default_rng(3), 0.02, 0.05)
    kept = x[:-1, 0] < 30
    law = PowerLaw.of(x[:-1][kept], optima[:-1][kept])
    free = law.at(x[-1]).mean(axis=0)
    moved = law.within([(x[-1], 0, 1, float(free[0]) + 0.3)])
    assert moved.at(x[-1]).mean(axis=0)[0] > free[0] + 0.1 and 0 < moved.kept < 1
    same = law.within([(x[-1], 0, 1, float(free[0]) - 5)])
    assert same.kept == pytest.approx(1.0, abs=0.01)
    assert same.at(x[-1]).mean(axis=0) == pytest.approx(free, abs=0.05)
    # Two that are as likely as not leave much; one that no draw allows contradicts the law.
    likely = [(x[-1], 0, 1, float(free[0])), (x[-1], 1, -1, float(free[1]))]
    assert law.within(likely).kept > 0.2
    for away in (3.0, 8.0, 100.0):
        assert law.within([(x[0], 0, 1, float(optima[0, 0]) + away)]).kept < 0.001
