"""What trials cost: those that ended early count in part."""

from __future__ import annotations

import pytest

from sweeper.trial import Result
from sweeper.verdict.compare import cost_of
from tests.engine.tiny_trials import trial


def result(steps: int) -> Result:
    return Result(trial=trial(), status="complete", objective=3.0, seconds=900.0, steps=steps)


def test_a_run_that_ended_early_counts_for_its_steps() -> None:
    # Tiny trials have 8 steps; one that kept none counts as whole.
    found = cost_of([result(8), result(2), result(0)], lambda spec: 100.0)
    assert found.trials == 3
    assert found.flops == pytest.approx(225.0)
    assert found.hours == pytest.approx(0.75)
