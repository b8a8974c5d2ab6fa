"""The standard parameterization does what people do without thinking of width."""

from __future__ import annotations

import pytest

from sweeper.classifier.classify import specs_between
from sweeper.models.llama import Llama
from sweeper.scaling.relative import Standard
from sweeper.scaling.spec import ScaledOp

ONES = dict.fromkeys(Standard.hyperparameters, 1.0)


def build(width: int, depth: int) -> Llama:
    return Llama(width=width, depth=depth, classes=64, seq_len=16)


def test_one_learning_rate_and_fan_in_init() -> None:
    for spec in specs_between(build, base=(16, 1), target=(64, 2)):
        scale = Standard().scale(spec, ONES)
        expected = 1.0 if spec.role == "embedding" else spec.fan_in**-0.5
        assert scale.init_std == pytest.approx(expected)
        assert (scale.lr, scale.multiplier, scale.backward_multiplier) == (1.0, 1.0, None)


def test_attention_is_over_the_root_of_head_size() -> None:
    op = ScaledOp(name="a", kind="attention", geometry={"head_size": 16})
    assert Standard().scale_op(op, ONES) == {"logit": 0.25}


def test_an_unknown_operation_is_an_error() -> None:
    with pytest.raises(ValueError, match="convolution"):
        Standard().scale_op(ScaledOp(name="x", kind="convolution", geometry={}), ONES)
