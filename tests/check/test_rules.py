from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.check.rules import RULES_AND_UPDATES, RuleRow, output_change, rule_table
from sweeper.records import to_json
from sweeper.scaling.spec import Update
from tests.scaling.test_spectral import COLUMNS, table

RIGHT = {
    ("inverse_fan_in", Update.SIGN),
    ("root_ratio", Update.ORTHOGONAL),
    ("root_ratio", Update.NORMALIZED),
}


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, Update], RuleRow]:
    return {(row.rule, row.update): row for row in rule_table()}


def test_which_rules_keep_the_move(rows: dict[tuple[str, Update], RuleRow]) -> None:
    assert set(rows) == set(RULES_AND_UPDATES)
    assert {key for key, row in rows.items() if row.keeps} == RIGHT


@pytest.mark.parametrize("shape", [(256, 256), (1024, 4096), (16, 4096)], ids=str)
def test_the_published_numbers(shape: tuple[int, int]) -> None:
    """The published table, measured independently (in torch, by tests/scaling too)."""
    found = {(row.rule, row.update): row.changes[shape] for row in rule_table([shape])}
    for key, value in zip(COLUMNS, table()[shape], strict=True):
        assert found[key] == pytest.approx(value, rel=0.04)


def test_ratios_between_shapes(rows: dict[tuple[str, Update], RuleRow]) -> None:
    """What the wrong rules are off by: sqrt(d_in / d_out), and sqrt(d_in)."""
    product = rows["inverse_root_product", Update.SIGN].changes
    assert product[256, 1024] / product[256, 256] == pytest.approx(2, rel=0.05)
    assert product[1024, 256] / product[256, 256] == pytest.approx(0.5, rel=0.05)
    root = rows["inverse_root_fan_in", Update.SIGN].changes
    assert root[1024, 1024] / root[256, 256] == pytest.approx(2, rel=0.05)
    floored = rows["root_ratio_floored", Update.ORTHOGONAL].changes
    assert floored[16, 1024] / floored[1024, 1024] == pytest.approx(8, rel=0.05)


def test_json(rows: dict[tuple[str, Update], RuleRow]) -> None:
    found = to_json(rows["inverse_fan_in", Update.SIGN])
    assert found["update"] == "sign" and found["keeps"] is True
    assert found["changes"]["16x1024"] == pytest.approx(0.28, rel=0.04)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_a_step_on_one_input_by_hand(out: int, into: int, seed: int) -> None:
    """One gradient d x^T has rank one: its singular vectors are d and x over their norms.

    So U x is sign(d) times the sum of |x| for a sign-like update; for the others it is d over its
    norm, times the norm of x.
    """
    generator = np.random.default_rng(seed)
    generator.standard_normal((out, 1), dtype=np.float32)
    x = generator.standard_normal((into, 1), dtype=np.float32).astype(float)
    norm = float(np.sqrt((x**2).sum()))
    by_hand = {
        Update.SIGN: float(abs(x).sum()),
        Update.ORTHOGONAL: norm / math.sqrt(out),
        Update.NORMALIZED: norm / math.sqrt(out),
    }
    for update, expected in by_hand.items():
        found = output_change(update, (out, into), 1, seed)
        assert found == pytest.approx(expected, rel=1e-3), update
