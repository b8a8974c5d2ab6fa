from __future__ import annotations

import numpy as np
import pytest

from sweeper.evidence.predict.budget import optimum
from sweeper.evidence.predict.forecast import fit_law
from sweeper.evidence.runs.loss_runs import LossRuns


def best_size(flops: float) -> float:
    """Hoffmann et al., 4."""
    scale = (0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62)
    return float(scale * (flops / 6) ** (0.28 / 0.62))


def isoflops(noise: float = 0.003) -> LossRuns:
    budgets = 1e18 * 10 ** (0.5 * np.arange(5))
    params = np.concatenate([best_size(c) * 2 ** np.linspace(-1.5, 1.5, 7) for c in budgets])
    flops = budgets.repeat(7)
    tokens = flops / 6 / params
    loss = 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28
    loss *= np.exp(noise * np.random.default_rng(0).standard_normal(len(loss)))
    return LossRuns(params, tokens, loss, flops, np.arange(35), [""] * 35)


def test_the_best_size_lies_in_its_interval_and_the_valley_is_told() -> None:
    result, real = optimum(fit_law(isoflops(), draws=200), 1e21), best_size(1e21)
    assert result.params.low < real < result.params.high < 8 * result.params.low
    assert result.params.value == pytest.approx(real, rel=0.3)
    assert result.params.value * result.tokens.value * 6 == pytest.approx(1e21)
    assert [v.times for v in result.valley] == [0.5, 2.0]
    assert all(v.gap.value > 0 for v in result.valley)
