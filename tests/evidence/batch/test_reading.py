from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pandas
import pytest

from sweeper.errors import BadInput, as_text
from sweeper.evidence.batch.reading import BatchCurve, BatchRuns, batch_runs, critical_of
from sweeper.evidence.runs.condition import where_equal
from sweeper.evidence.runs.read import read

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
