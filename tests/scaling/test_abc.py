"""The printed table of exponents, and the symmetry."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sweeper.scaling.prescription import absorbed_factors
from sweeper.scaling.relative import (
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
from sweeper.scaling.spec import Role, Update, layer_of, with_layer

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


@pytest.mark.parametrize(
    ("name", "layer", "starred"),
    [
        ("blocks.3.ffn.up", "3", "blocks.*.ffn.up"),
        ("encoder.layer.12.attention.0", "12", "encoder.layer.*.attention.0"),
        ("0.weight", "0", "*.weight"),
        ("head", None, "head"),
        ("conv1.weight2", None, "conv1.weight2"),
    ],
)
def test_the_first_part_that_is_a_number_is_the_layer(
    name: str, layer: str | None, starred: str
) -> None:
    assert layer_of(name) == layer
    assert with_layer(name, "*") == starred


Step = Callable[[Tensor, Tensor, float, float], Tensor]
"""The change of a weight, from the weight, its gradient, lr and eps."""

STEPS: dict[Update, Step] = {
    Update.GRADIENT: lambda w, g, lr, eps: -lr * g,
    Update.SIGN: lambda w, g, lr, eps: -lr * g / (g.abs() + eps),
    Update.PARAMETER: lambda w, g, lr, eps: -lr * w.pow(2).mean().sqrt() * g / (g.abs() + eps),
    Update.NORMALIZED: lambda w, g, lr, eps: -lr * g / (g.norm() + eps),
    Update.ORTHOGONAL: lambda w, g, lr, eps: -lr * orthogonal(g, eps),
    Update.HYPERBALL: lambda w, g, lr, eps: on_sphere(w, g / (g.abs() + eps), lr),
    Update.ORTHOGONAL_HYPERBALL: lambda w, g, lr, eps: on_sphere(w, orthogonal(g, eps), lr),
}


def orthogonal(g: Tensor, eps: float) -> Tensor:
    u, s, v = torch.linalg.svd(g, full_matrices=False)
    return u * (s / (s + eps)) @ v


def on_sphere(w: Tensor, u: Tensor, lr: float) -> Tensor:
    """A step of relative length lr, back onto the sphere."""
    moved = w - lr * w.norm() * u / u.norm()
    return moved * w.norm() / moved.norm() - w


@pytest.mark.parametrize("update", list(Update))
@pytest.mark.parametrize("multiplier", [0.03, 1.0, 7.0])
def test_an_absorbed_multiplier_changes_no_step(update: Update, multiplier: float) -> None:
    """Of V = multiplier * W, to which the gradient is g: W sees multiplier * g."""
    generator = torch.Generator().manual_seed(0)
    w, g = (torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    step, (lr, eps) = STEPS[update], absorbed_factors(update, multiplier)
    moved = multiplier * step(w, multiplier * g, 0.01, 0.05)
    torch.testing.assert_close(step(multiplier * w, g, 0.01 * lr, 0.05 * eps), moved)
    assert moved.abs().max() > 1e-6
