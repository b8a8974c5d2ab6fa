"""The picture of a prediction shows its data, however wide the law's band is."""

from __future__ import annotations

import numpy as np
import pytest

import sweeper
from sweeper.evidence.predict.decision import Prediction
from sweeper.evidence.predict.page import prediction_figure
from sweeper.evidence.runs.loss_runs import Design, LossRuns, Rungs


@pytest.mark.parametrize("beyond", [1e2, 1e12])
def test_axes_are_those_of_the_runs_and_the_run_to_come(beyond: float) -> None:
    """Four sizes whose floor is not identified, asked about far beyond them."""
    params = np.array([1e6, 1.5e6, 2.2e6, 3.3e6]).repeat(2)
    loss = (3.1 + 40 / params**0.3) * np.tile([0.97, 1.03], 4)
    tokens = np.full(8, 1e8)
    frame = {"params": params, "tokens": tokens, "loss": loss}
    made = sweeper.predict(frame, to_params=1e6 * beyond, to_tokens=1e8)
    assert isinstance(made, Prediction) and made.prediction is not None
    runs = LossRuns(params, tokens, loss, 6 * params * tokens, np.arange(8), [""] * 8)
    axes = prediction_figure(made, runs, Rungs.of(runs, Design.of(runs))).axes[0]
    low, high = axes.get_ylim()
    span = np.ptp([*loss, made.prediction.loss])
    assert low <= min(*loss, made.prediction.loss) and high >= max(*loss, made.prediction.loss)
    assert high - low < 4 * span
