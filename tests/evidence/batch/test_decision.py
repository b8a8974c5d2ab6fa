import math
from itertools import permutations

import numpy as np
import pandas
import pytest

from sweeper.errors import BadInput, as_text
from sweeper.evidence.batch.decision import critical_batch, steps_to
from sweeper.evidence.batch.reading import BatchCurve, BatchRuns, batch_runs, critical_of
from sweeper.evidence.runs.condition import where_equal
from sweeper.evidence.runs.read import read

BATCHES = np.repeat([8.0, 16.0, 32.0, 64.0, 128.0, 256.0], 2)


def steps(critical: float, generator: np.random.Generator, noise: float = 0.03) -> np.ndarray:
    """S = S_min (1 + B_crit / B) with S_min 700."""
    return 700 * (1 + critical / BATCHES) * np.exp(generator.normal(0, noise, len(BATCHES)))


def test_intervals_hold_it_in_95_of_100() -> None:
    generator, inside, critical = np.random.default_rng(100), [], 100.0
    for _ in range(40):
        result = critical_batch(BATCHES, steps(critical, generator), 3.0)
        assert result.code == "critical" and result.runs == 12
        inside.append(result.batch.low <= critical <= result.batch.high)
    assert np.mean(inside) >= 0.9


def test_beyond_the_batches_it_is_a_bound() -> None:
    generator = np.random.default_rng(0)
    far = critical_batch(BATCHES, steps(1e5, generator), 3.0)
    assert far.code == "at_least" and far.batch.low > 256 and math.isinf(far.batch.high)
    none = critical_batch(BATCHES, steps(0.01, generator), 3.0)
    assert none.code == "at_most" and none.batch.low == 0 and none.batch.high < 8
    few = critical_batch(BATCHES[:4], steps(50, generator)[:4], 3.0)
    assert few.code == "too_few" and math.isnan(few.batch.value)


def test_steps_are_read_off_a_noisy_curve() -> None:
    at = np.arange(1.0, 2001.0, 10)
    losses = 2.0 + 3.0 * at**-0.3 + np.random.default_rng(0).normal(0, 0.01, len(at))
    true = (3.0 / 0.5) ** (1 / 0.3)
    assert steps_to(at, losses, 2.5) == pytest.approx(true, rel=0.1)
    assert math.isnan(steps_to(at, losses, 2.0)) and math.isnan(steps_to(at, losses, 9.0))


CRITICAL = 64


def loss(steps: np.ndarray, batch: int) -> np.ndarray:
    return 2 + 3 * (steps / (1 + CRITICAL / batch)) ** -0.4


def curve(batch: int, seed: str = "0") -> BatchCurve:
    steps = np.arange(10.0, 2001.0, 10)
    return BatchCurve(batch, -8.0, seed, steps, loss(steps, batch))


def test_runs_that_diverged_are_told_by_what_they_reached_in_any_order() -> None:
    whole = [curve(batch) for batch in (8, 32, 128, 512)]
    ended, spiked, never = curve(32, "1"), curve(128, "1"), curve(2048)
    ended.losses[-20:], spiked.losses[60], never.losses[:] = math.nan, math.inf, math.nan
    for odd in ([ended], [spiked], [ended, spiked]):
        for order in permutations(range(len(odd) + 1)):
            parts = [whole, *([run] for run in odd)]
            runs = tuple(run for place in order for run in parts[place])
            critical = critical_of(BatchRuns(curves=runs))
            assert critical.code == "critical" and critical.runs == 4 + len(odd)
            assert critical.batch.value == pytest.approx(CRITICAL, rel=0.05)
    for runs in ((*whole, never), (never, *whole)):
        critical = critical_of(BatchRuns(curves=runs))
        assert critical.code == "critical" and critical.batches == (8, 32, 128, 512)


def test_ends_of_runs_of_several_lengths_are_a_curve_and_an_endless_batch_is_refused() -> None:
    rows = [
        {"batch_size": float(batch), "steps": steps, "lr": lr, "loss": float(end) + off}
        for batch in (8, 32, 128, 512)
        for steps in (200, 400, 800, 1600)
        for lr, off in ((0.01, 0.0), (0.02, 0.05))
        for end in loss(np.array([steps]), batch)
    ]
    table = pandas.DataFrame(rows)
    for frame in (table, table.iloc[::-1]):
        result = batch_runs(read(frame))
        assert critical_of(result).batch.value == pytest.approx(CRITICAL, rel=0.15)
    wide = pandas.concat([table.assign(N=10_000_019), table[1:].assign(N=20_000_003)])
    result = batch_runs(read(wide))
    note = as_text(result.notes[0])
    assert critical_of(result).batch.value == pytest.approx(CRITICAL, rel=0.15)
    assert "N 10000019, of which most runs are" in "".join(map(str, note))
    assert where_equal({"N": 20_000_003}) in note
    table.loc[3, "batch_size"] = math.inf
    with pytest.raises(BadInput, match="row 4 has a batch of inf"):
        batch_runs(read(table))
