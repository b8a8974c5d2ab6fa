from typing import Any

import numpy as np
import pandas as pd
import pytest

import sweeper
from sweeper.errors import SHELL
from sweeper.evidence.judge.request import JudgeRequest
from tests.api.test_types import ODD, refused
from tests.evidence.runs.grids import runs

RUNS = runs(seeds=2)
NO_PATH = "\ud800"


@pytest.mark.parametrize("name", ["noise", "ignore", "columns"])
def test_of_tables(name: str) -> None:
    for value in ODD:
        assert name in refused(sweeper.judge, RUNS, **{name: value})


def test_a_table_in_memory_is_no_word_of_a_call() -> None:
    assert SHELL.call(JudgeRequest(source=RUNS, axis="depth").call) == "sweeper judge --axis depth"


@pytest.mark.parametrize(
    ("call", "keywords"),
    [
        (sweeper.judge, {"root": NO_PATH}),
        (sweeper.judge, {"study": "x"}),
        (sweeper.judge, {"series": "x"}),
        *[
            (sweeper.compare, {"by": value, "baseline": "a"})
            for value in (np.array([1, 2]), pd.Series([1]), RUNS, pd.NA, np.int64(3), 5)
        ],
        (sweeper.compare, {"by": "seed", "baseline": "0", "root": NO_PATH}),
    ],
)
def test_of_keywords_beside_a_table(call: Any, keywords: dict[str, Any]) -> None:
    names = [name for name in keywords if name != "baseline"]
    assert names[-1] in refused(call, RUNS, **keywords)
