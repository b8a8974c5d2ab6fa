from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.evidence.batch.decision import critical_batch, steps_to

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
