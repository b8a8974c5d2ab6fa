import math
from typing import Any

import pytest

from tests.scripts import load_script

rms: Any = load_script("figures/rms.py")
fp8: Any = load_script("figures/fp8.py")


def record(sizes: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """As `check --scales` writes it: the RMS of every operand of a product, at steps 0 and 9."""
    return [
        {
            "product": product,
            "operand": operand,
            "step": step,
            "rms": size,
            "e4m3": {"underflow": 0.25, "overflow": 0.0},
        }
        for step, ends in ((0, 0), (9, 1))
        for product, both in sizes.items()
        for operand in ("input", "weight", "gradient")
        for size in (both[ends],)
    ]


def test_growth_is_by_kind_of_product_and_leads_are_over_all_others() -> None:
    sizes = {"layers.0.ffn.down": (1.0, 2.0), "layers.1.ffn.down": (1.0, 8.0), "head": (0.5, 1.0)}
    run = rms.operands(record({**sizes, "layers.0.core.logits": (1.0, 99.0)}))
    grown = rms.growth(run, "input")
    assert grown == pytest.approx({"layers.*.ffn.down": 2.0, "head": 1.0})
    assert rms.lead(grown, ["layers.*.ffn.down"]) == pytest.approx(1.0)
    assert rms.lead(grown, ["head"]) == pytest.approx(-1.0)
    assert run["weight"][0].lost == 0.25


def test_a_cast_under_which_all_diverge_costs_everything() -> None:
    assert fp8.overall([math.inf, math.inf]).low == math.inf
    half = fp8.overall([0.1, math.inf])
    assert half.low == -math.inf
    cost = fp8.overall([0.1, 0.2, 0.3])
    assert cost.low < cost.value == pytest.approx(0.2) and cost.high < 0.5
