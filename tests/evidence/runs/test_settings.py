"""What else differs is named, with what can be done: never by throwing sizes together."""

from __future__ import annotations

import shlex

import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import SHELL, BadInput
from sweeper.evidence.runs.read import read
from tests.evidence.runs.grids import grid, runs
from tests.refusals import raises_config_error


def two(column: str) -> pandas.DataFrame:
    frame = runs(seeds=1)
    return pandas.concat([frame.assign(**{column: 100}), frame.assign(**{column: 200})])


@pytest.mark.parametrize("column", ["tokens", "steps", "experts"])
def test_sizes_that_differ_are_never_ignored_nor_repeats_of_a_run(column: str) -> None:
    with pytest.raises(BadInput) as refused:
        grid(two(column))
    message = refused.value.spelled(SHELL)
    assert "--ignore" not in message and f"--where '{column} == 100' takes those alike" in message
    with raises_config_error("ignore", column) as caught:
        grid(two(column), ignore=(column,))
    message = caught.value.spelled(SHELL)
    where = shlex.split(message[message.index("--where") :].split(" takes")[0])[1]
    assert len(read(two(column), where=where)) == len(runs(seeds=1))


def test_a_size_that_goes_with_the_axis_may_be_ignored() -> None:
    frame = runs(seeds=1).assign(batch_size=lambda table: table.n_embd // 4)
    assert len(grid(frame, ignore=("batch_size",)).curves) == 4
