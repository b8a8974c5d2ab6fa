"""What one set of curves under u-muP's rule says of the rule, and of its absence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripts import load_script

embedding: Any = load_script("figures/embedding.py")


def number(value: float, reach: float = 0.1) -> dict[str, float]:
    return {"value": value, "low": value - reach, "high": value + reach}


def curves(slope: float, reach: float, answer: str) -> dict[str, Any]:
    """Curves from width 32 to 128 whose optimum goes as width^slope with the rule."""
    sizes = [
        {"size": {"width": 32}, "is_base": True, "answer": "base", "reason": ""},
        {"size": {"width": 128}, "is_base": False, "answer": answer, "reason": "why"},
    ]
    for size, shift in zip(sizes, (0.0, 2 * slope), strict=True):
        size["shift_log2"] = number(shift, 2 * reach)
    judged = {"axis": "width", "answer": answer, "sizes": sizes}
    return {"axes": [judged], "trend": {"slope": number(slope, reach)}}


@pytest.mark.parametrize(
    ("slope", "reach", "answers"),
    [
        (0.0, 0.1, ["holds", "reproduced", "reproduced"]),
        (0.5, 0.1, ["fails", "cannot say", "not reproduced"]),  # it stays without the rule
        (0.9, 0.1, ["fails", "not reproduced", "not reproduced"]),
        (0.0, 0.7, ["cannot say yet", "cannot say", "cannot say"]),
        (-0.4, 0.1, ["holds", "reproduced", "not reproduced"]),
    ],
)
def test_without_the_rule_the_power_is_less_by_a_half(
    slope: float, reach: float, answers: list[str]
) -> None:
    rows: list[tuple[str, ...]] = []
    lab = SimpleNamespace(claim=lambda *claim: rows.append(claim))
    embedding.judge(lab, curves(slope, reach, answers[0]))
    by_width = embedding.ANSWERS[answers[0]]
    assert [claim[-1] for claim in rows] == [by_width, *answers[1:]]
    assert f"as width^{slope - 0.5:+.2f}" in rows[1][2]
    assert f"shift {2 * slope - 1:+.2f}" in rows[1][2]
