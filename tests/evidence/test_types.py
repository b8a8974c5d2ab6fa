"""Wrong types of what is asked of runs: one error that names the keyword."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import sweeper
from tests.api.test_types import refused

RUNS = pd.DataFrame(
    {"width": w, "eta": 2.0**e, "loss": 3 + abs(e + 7) / 10, "seed": s}
    for w in (32, 64)
    for e in range(-9, -4)
    for s in (0, 1)
)
ODD: tuple[Any, ...] = (object(), b"x", 1j, [[1]], {None: 1}, np.array([1, 2]), pd.Series([1]), len)
NO_PATH = "\ud800"


@pytest.mark.parametrize(
    "name", ["to_width", "noise", "draws", "ignore", "columns", "out", "strict"]
)
def test_of_tables(name: str) -> None:
    for call in (sweeper.judge, sweeper.predict):
        for value in ODD:
            if name == "draws" and call is sweeper.judge:
                continue
            said = refused(call, RUNS, **{name: value})
            assert name in said


@pytest.mark.parametrize(
    "source", [5, b"x", len, [[1, 2], [3]], {"a": 1}, "a" * 5000, "\0", np.zeros(3)]
)
def test_of_what_is_no_table(source: Any) -> None:
    assert refused(sweeper.judge, source)
    assert refused(sweeper.predict, source)
    assert refused(sweeper.judge, RUNS.assign(loss=[RUNS] * len(RUNS)))


@pytest.mark.parametrize(
    ("call", "keywords"),
    [
        (sweeper.judge, {"out": NO_PATH}),
        (sweeper.judge, {"eta": -1}),
        (sweeper.judge, {"study": "x"}),
        (sweeper.judge, {"series": "x"}),
        *[
            (sweeper.compare, {"by": value, "baseline": "a"})
            for value in (np.array([1, 2]), pd.Series([1]), RUNS, pd.NA, np.int64(3), 5)
        ],
        (sweeper.compare, {"by": "seed", "baseline": "0", "out": NO_PATH}),
    ],
)
def test_of_keywords_beside_a_table(call: Any, keywords: dict[str, Any]) -> None:
    names = [name for name in keywords if name != "baseline"]
    assert names[-1] in refused(call, RUNS, **keywords)
