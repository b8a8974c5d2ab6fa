from __future__ import annotations

import pytest

from sweeper.check.rules import RULES_AND_UPDATES, RuleRow, rule_table
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
