"""What a plan asks of a plain model, in words."""

from __future__ import annotations

from sweeper.plan.factors import needs
from sweeper.scaling.spec import ScaledOp


def attention(name: str) -> ScaledOp:
    return ScaledOp(name=name, kind="attention", geometry={"head_size": 4})


def test_calls_of_one_module_that_differ_are_all_told() -> None:
    ops = [attention("block.scaled_attention"), attention("block.scaled_attention_")]
    factors = [{"logit": 0.0625}, {"logit": 0.25}]
    (line,) = needs(
        ops,
        {op.name: factor for op, factor in zip(ops, factors, strict=True)},
        {},
        unit_scaled=False,
        decay=False,
    )
    assert line.startswith("block: multiply q k^T by 0.0625 to 0.25 (by call: see `operations`)")


def told(lookup: bool) -> str:
    geometry = {"parameter": "slots.0", "lookup": lookup}
    op = ScaledOp(name="memory", kind="tied_readout", geometry=geometry)
    return needs([op], {"memory": {"output": 0.25}}, {}, unit_scaled=False, decay=False)[0]


def test_a_tied_weight_is_named() -> None:
    head = "multiply the logits by 0.25: the head is tied to the embedding slots.*"
    assert told(lookup=True) == f"memory: {head}"
    product = "multiply the product with slots.* that sums over the width by 0.25"
    assert told(lookup=False) == f"memory: {product}: it is used both ways"
