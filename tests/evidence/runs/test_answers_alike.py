import math
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sweeper.evidence.compare.reading import variant_runs
from sweeper.evidence.runs.grid import Grid
from sweeper.evidence.runs.loss_runs import law_runs, loss_runs_of
from sweeper.evidence.runs.read import read
from sweeper.evidence.runs.roles import LADDER_ROLES
from tests.evidence.runs import grids

grid = partial(grids.grid, noise=0.01)
SIZES = st.sampled_from([32, 64, 128, 256, 512, 1024])
WIDTHS = st.lists(SIZES, min_size=2, max_size=4, unique=True)
ETAS = st.builds(
    lambda low, count: range(low, low + count), st.integers(-12, -7), st.integers(3, 6)
)


@st.composite
def tables(draw: st.DrawFn) -> pandas.DataFrame:
    """Runs of some widths, rates and seeds: some diverged, some were never made."""
    widths, etas, seeds = draw(WIDTHS), draw(ETAS), draw(st.integers(1, 3))
    rows = [
        {"width": width, "eta": 2.0**eta, "seed": seed, "loss": draw(st.floats(2.0, 5.0))}
        for width in widths
        for eta in etas
        for seed in range(seeds)
    ]
    frame = pandas.DataFrame(rows)
    gone = draw(st.lists(st.integers(0, len(rows) - 1), max_size=3))
    frame.loc[gone, "loss"] = math.inf
    lost = draw(st.lists(st.integers(0, len(rows) - 1), max_size=2))
    assume(np.isfinite(frame.loss).any())
    return frame.drop(index=[place for place in {*lost} if place not in gone])


def assert_alike(first: Grid, other: Grid) -> None:
    assert first.curves == other.curves and first.base == other.base and first.runs == other.runs
    assert (first.seeds, first.noise) == (other.seeds, other.noise)


@settings(max_examples=settings.default.max_examples // 4)
@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_columns_says_nothing(
    frame: pandas.DataFrame, random: Random
) -> None:
    columns = random.sample([*frame.columns], len(frame.columns))
    shuffled = frame.iloc[random.sample(range(len(frame)), len(frame))][columns]
    assert_alike(grid(frame), grid(shuffled))
    # Nor where no seed tells runs of a cell apart, nor among variants.
    first, other = (f.rename(columns={"seed": "of"}) for f in (frame, shuffled))
    assert_alike(grid(first, ignore=["of"]), grid(other, ignore=["of"]))
    if frame.seed.nunique() > 1:
        cells = [variant_runs(read(f), "of", str(frame.seed.min())).cells for f in (first, other)]
        assert repr(cells[0]) == repr(cells[1])


def test_a_law_has_the_same_points_whatever_the_order_of_rows() -> None:
    rows = [(n, n * r, 2 + r / n) for n in (1e7, 1e8, 1e9) for r in (10.0, 20.0, 40.0)]
    frame = pandas.DataFrame(rows, columns=["params", "tokens", "loss"])
    first, other = (
        loss_runs_of(law_runs(read(f))) for f in (frame, frame.sample(frac=1, random_state=0))
    )
    assert repr(replace(first, labels=())) == repr(replace(other, labels=()))


@settings(max_examples=settings.default.max_examples // 4)
@given(
    tables(),
    st.sampled_from(LADDER_ROLES["width"]),
    st.sampled_from(LADDER_ROLES["loss"][:9]),
    st.sampled_from(LADDER_ROLES["seed"]),
    st.sampled_from(["log2_lr", "lr", "peak_lr", "Learning Rate"]),
)
def test_names_and_units_say_nothing(
    frame: pandas.DataFrame, width: str, loss: str, seed: str, eta: str
) -> None:
    names = {"width": width, "loss": loss, "seed": seed, "eta": eta}
    other = frame.rename(columns=names)
    if eta.startswith("log2"):
        other[eta] = np.log2(other[eta])
    assert_alike(grid(frame), grid(other))
    own = {"width": "A", "loss": "B", "seed": "C"}
    named = ",".join(f"{role}={name}" for role, name in own.items())
    assert_alike(grid(frame), grid(frame.rename(columns=own), columns=named))


@pytest.mark.parametrize(
    ("name", "scale"),
    [("params_M", 1e6), ("n_params (millions)", 1e6), ("params (1e9)", 1e9)],
)
def test_the_units_of_a_law_s_columns_say_nothing(name: str, scale: float) -> None:
    frame = pandas.DataFrame({"params": [1e7, 1.37e8, 1e9, 1e10], "loss": [3.4, 3.0, 2.5, 2.2]})
    frame["tokens"] = frame.params * [20.0, 10.0, 60.0, 31.0]
    other = frame.assign(params=frame.params / scale).rename(columns={"params": name}).iloc[::-1]
    first, two = loss_runs_of(law_runs(read(frame))), loss_runs_of(law_runs(read(other)))
    np.testing.assert_allclose(first.params, two.params, rtol=1e-12)
    np.testing.assert_allclose(first.loss, two.loss)
