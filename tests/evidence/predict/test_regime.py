from __future__ import annotations

import numpy as np
import pytest

import sweeper
from sweeper.evidence.predict.regime import BETTER, RunToCome, choose_runs
from sweeper.evidence.runs.loss_runs import LossRuns
from tests.stats.test_power_law import hoffmann as truth

BUDGETS = 1e18 * 3.0 ** np.arange(5)
RATIOS = 2.0 ** np.arange(-4, 10, 1.5)


def isoflops(*, bend: float, noise: float = 0.002, seed: int = 0) -> LossRuns:
    """Budgets of nine sizes; below two tokens a parameter losses lie off the law by `bend`."""
    random = np.random.default_rng(seed)
    flops, ratio = (a.ravel() for a in np.meshgrid(BUDGETS, RATIOS))
    params = np.sqrt(flops / 6 / ratio)
    tokens = ratio * params
    loss = truth(params, tokens) * np.exp(noise * random.standard_normal(len(flops)))
    loss *= np.exp(bend * np.maximum(np.log(2 / ratio), 0) ** 1.5)
    return LossRuns(params, tokens, loss, flops, np.arange(len(loss)), [""] * len(loss))


def test_runs_that_bend_are_left_out() -> None:
    runs = isoflops(bend=0.08)
    kept, rest = choose_runs(runs, RunToCome(ratio=20, beyond=10))
    assert rest is not None and rest.code == "undertrained" and rest.ratio == 3
    assert rest.count == int((runs.tokens / runs.params < 3).sum()) == len(runs) - len(kept)
    assert rest.of == len(runs) and rest.miss < BETTER * rest.miss_all


def test_no_run_is_left_out_of_a_law_that_holds_of_all() -> None:
    runs = isoflops(bend=0.0)
    kept, rest = choose_runs(runs, RunToCome(ratio=20, beyond=2))
    assert rest is None and kept is runs


@pytest.mark.parametrize(
    ("asked", "ratios", "spans"),
    [
        (RunToCome(ratio=20, beyond=4), (0, 1, 3), (np.inf, 32, 8)),
        (RunToCome(ratio=2, beyond=4), (0, 1), (np.inf, 32, 8)),
        (RunToCome(ratio=0.5, beyond=20), (0,), (np.inf, 32)),
        (RunToCome(ratio=0.5, beyond=100), (0,), (np.inf,)),
    ],
)
def test_runs_like_the_one_to_come_stay(
    asked: RunToCome, ratios: tuple[float, ...], spans: tuple[float, ...]
) -> None:
    assert asked.allowed == (ratios, spans)
    if len(ratios) == len(spans) == 1:
        assert choose_runs(isoflops(bend=0.08), asked)[1] is None


def test_an_undertrained_tables_interval_is_that_of_its_good_runs() -> None:
    runs = isoflops(bend=0.08)
    frame = {"params": runs.params, "tokens": runs.tokens, "loss": runs.loss}
    made = sweeper.predict(frame, to_params=1e9, to_tokens=2e10)
    message = made.prediction
    real = float(truth(np.array(1e9), np.array(2e10)))
    assert message is not None and message.low <= real <= message.high
    assert message.high - message.low < 0.03 * real
    unlike = made.inputs.unlike
    assert unlike is not None and unlike.count == int((runs.tokens / runs.params < 3).sum()) == 20
