"""The printed table of exponents, the linear programme behind its bold rows, the symmetry."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.scaling.abc import (
    MEAN_FIELD,
    MUP,
    NTK,
    STANDARD,
    ABExponents,
    Alignment,
    Exponents,
    exponents,
    shift,
)
from sweeper.scaling.spec import Role, Update

ROLES = (Role.EMBEDDING, Role.HIDDEN, Role.READOUT)
TABLES = {"standard": STANDARD, "ntk": NTK, "mup": MUP, "mean_field": MEAN_FIELD}
COLUMNS: list[tuple[Update, Alignment]] = [
    (update, alignment)
    for update in (Update.GRADIENT, Update.SIGN, Update.PARAMETER)
    for alignment in ("full", "none")
]
TABLE = """
standard   | 1/2,-1/2,-1 | 1/2,0,-1/2  | 0,-1,-1       | 0,-1/2,-1/2 | 0,-1/2,-1/2 | 0,0,0
ntk        | 1/2,1/2,0   | 1/2,1,1/2   | 0,-1/2,-1/2   | 0,0,0       | 0,-1/2,-1/2 | 0,0,0
mup        | 0,0,0       | 0,1/2,0     | -1/2,-1,-1/2  | -1/2,-1/2,0 | 0,-1/2,0    | 0,0,1/2
mean_field | 1,1,1       | 1,3/2,1     | 0,-1/2,0      | 0,0,1/2     | 0,-1/2,0    | 0,0,1/2
"""
"""Learning-rate exponents -c for embedding, hidden, readout, by `TABLES` and `COLUMNS`."""


def cells() -> list[tuple[str, Update, Alignment, tuple[float, ...]]]:
    rows = []
    for line in TABLE.strip().splitlines():
        name, *row = (cell.strip() for cell in line.split("|"))
        for (update, alignment), cell in zip(COLUMNS, row, strict=True):
            halves = tuple(
                float(n.replace("3/2", "1.5").replace("1/2", "0.5")) for n in cell.split(",")
            )
            rows.append((name, update, alignment, halves))
    return rows


@pytest.mark.parametrize(("name", "update", "alignment", "expected"), cells())
def test_the_table(
    name: str, update: Update, alignment: Alignment, expected: tuple[float, ...]
) -> None:
    by_role = [exponents(TABLES[name], role, update, alignment) for role in ROLES]
    assert tuple(-e.c for e in by_role) == expected
    assert [(e.a, e.b) for e in by_role] == [TABLES[name][role] for role in ROLES]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("alignment", ["full", "none"])
def test_sgd_is_the_linear_programme_s_optimum(name: str, alignment: Alignment) -> None:
    """Largest sum of rates such that no layer's update outgrows O(1), by trying all.

    Unknowns: c of three layers and h, the exponent of the gradient of the activations, which
    neither the readout's weights nor their updates may exceed.
    """
    (ae, _), (ah, _), (ar, br) = (TABLES[name][role] for role in ROLES)
    k = {"full": 1.0, "none": 0.5}[alignment]
    upper = [
        ((-1, 0, 0, -1), 2 * ae),  # 2a + c + h >= 0
        ((0, -1, 0, -1), 2 * ah - k),
        ((0, 0, -1, 0), 2 * ar - k),
        ((0, 0, 0, 1), ar + br),  # h <= a + b
        ((0, 0, -1, 1), 2 * ar),  # h <= 2a + c
    ]
    halves = np.arange(-3, 3.25, 0.5)
    grid = np.stack(np.meshgrid(*[halves] * 4, indexing="ij"), -1).reshape(-1, 4)
    feasible = grid[np.all([grid @ np.array(row) <= bound + 1e-9 for row, bound in upper], axis=0)]
    cost = feasible[:, :3].sum(1)
    best = feasible[cost == cost.min()]
    ours = [exponents(TABLES[name], r, Update.GRADIENT, alignment).c for r in ROLES]
    assert best[:, :3].tolist() == [ours], "the one optimum"


halves = st.integers(-4, 4).map(lambda n: n / 2)


@given(
    thetas=st.tuples(halves, halves, halves),
    columns=st.sampled_from(list(product(Update, ("full", "none")))),
)
def test_the_rules_respect_the_symmetry(
    thetas: tuple[float, ...], columns: tuple[Update, Alignment]
) -> None:
    """Derived from a shifted table, the exponents are the shifted ones: nothing prefers a table."""
    for table in TABLES.values():
        shifted: ABExponents = {
            role: (table[role][0] + theta, table[role][1] - theta)
            for role, theta in zip(ROLES, thetas, strict=True)
        }
        for role, theta in zip(ROLES, thetas, strict=True):
            expected = shift(exponents(table, role, *columns), theta, columns[0])
            assert exponents(shifted, role, *columns) == expected


def test_matrix_updates_have_exponents_of_their_own() -> None:
    """Never Adam's exponent under Muon: sqrt(fan-out / fan-in) is 1/2, 0, -1/2 in the width."""
    for update in (Update.ORTHOGONAL, Update.NORMALIZED):
        rates = [-exponents(STANDARD, role, update).c for role in ROLES]
        assert rates == [0.5, 0.0, -0.5]


def test_what_does_not_grow_has_no_exponents() -> None:
    assert exponents(MUP, Role.FIXED) == Exponents()


def test_as_printed_the_readout_of_mup_is_the_standard_one() -> None:
    """Erratum E1 (docs/papers.md): (1/2, 0) shifts onto (0, 1/2) with everything else."""
    printed: ABExponents = {**MUP, Role.READOUT: (0.5, 0.0)}
    for role in ROLES:
        mine = exponents(printed, role)
        theta = STANDARD[role][0] - mine.a
        assert shift(mine, theta, Update.SIGN) == exponents(STANDARD, role)
