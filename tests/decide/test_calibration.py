"""A small run of scripts/bench/verdict.py: wrong answers are rare, intervals hold the truth."""

import pytest

from sweeper.stats import curve as module
from tests.scripts import load_script

BENCH = load_script("bench/verdict.py")
SCENARIOS = {scenario.name: scenario for scenario in BENCH.SCENARIOS}


OFTEN = ("two minima",)
"""In every run; `test_cliff.py` has cliffs, `test_ladder_verdict.py` noise that is too large, and
`make test-long` has all."""
FINER_THAN_THE_GRID = ("a flat bottom", "two minima")
"""Their basins end where losses change within a step, which no curve through the points shows."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.long)
        for name in sorted(SCENARIOS)
    ],
)
def test_wrong_answers_are_rare_and_intervals_hold(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAWS", 300)
    count = 5 if name in OFTEN else 12
    tally = BENCH.run(SCENARIOS[name], count, seed=1)
    assert all(sum(tally.answers[kind].values()) == count for kind in ("transfers", "failures"))
    assert tally.rate("failures", "holds") == 0 and tally.rate("transfers", "fails") <= 0.09
    assert tally.rate("failures", "fails") >= 0.2
    for what in ("optimum", "shift", "loss gap", "loss"):
        assert tally.coverage(what) >= 0.83, what
    assert tally.coverage("basin") >= 0.83 or name.startswith(FINER_THAN_THE_GRID)
    assert tally.trends["hurt"] <= 2
