from __future__ import annotations

from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import BadInput
from sweeper.evidence.each.reading import _point, varied_settings
from sweeper.evidence.runs.read import read

POINT = {"lr": 0.01, "wd": 0.1, "norm": "rms"}


def table(**more: Any) -> pandas.DataFrame:
    """Two widths, two seeds: lr, wd and norm varied one at a time, and one run off by two."""
    changes = [
        *({"lr": POINT["lr"] * 2**k} for k in (-1, 1)),
        *({"wd": value} for value in (0.0, 0.2)),
        {"norm": "layer"},
        {"lr": 0.04, "wd": 0.4},
        {},
    ]
    rows = [
        {"width": width, **POINT, **change, "seed": seed, "loss": 3 + at / 100, **more}
        for width in (64, 128)
        for at, change in enumerate(changes)
        for seed in (0, 1)
    ]
    return pandas.DataFrame(rows)


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=40, unique=True),
    st.integers(1, 3),
)
def test_the_point_has_most_neighbours(rows: list[tuple[int, ...]], columns: int) -> None:
    kinds = np.unique(np.array(rows, float)[:, :columns], axis=0)
    neighbours = [int(((kinds != kind).sum(axis=1) == 1).sum()) for kind in kinds]
    assert neighbours[_point(kinds, np.ones(len(kinds)))] == max(neighbours)


def test_the_point_is_found_and_what_differs_from_it_twice_is_not_counted() -> None:
    varied = varied_settings(read(table().sample(frac=1, random_state=1)))
    assert varied.axis == "width" and varied.used == 24 and len(varied.lines) == 6
    lines = {line.name: line for line in varied.lines if line.size == 64}
    assert 2 ** lines["lr"].default == pytest.approx(0.01) and len(lines["lr"].losses) == 3
    assert lines["norm"].choices == ("layer", "rms") and lines["norm"].default == 1.0
    # 0 has no logarithm.
    assert lines["wd"].choices[:2] == ("0", "0.1") and lines["wd"].default == 1.0
    assert any("several settings" in str(note) for note in varied.notes)


def test_what_another_setting_fixes_is_no_setting_of_its_own() -> None:
    frame = table()
    frame["min_lr"] = frame["lr"] / 10
    assert {line.name for line in varied_settings(read(frame)).lines} == {"lr", "wd", "norm"}


def test_two_sizes_at_once_are_refused_with_what_takes_one() -> None:
    both = pandas.concat([table(tokens=10**9), table(tokens=2 * 10**9)])
    with pytest.raises(BadInput, match="tokens"):
        varied_settings(read(both))


def test_a_table_without_a_varied_setting_is_refused() -> None:
    with pytest.raises(BadInput, match="varied around a point"):
        varied_settings(read(table()[["width", "seed", "loss"]]))
