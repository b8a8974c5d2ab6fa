"""What a plan asks of a plain model, in words."""

from __future__ import annotations

from sweeper.scaling.spec import ScaledOp
from sweeper.transfer.needs import needs


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
