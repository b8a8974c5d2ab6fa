"""Every config of the group keeps the protocol; a newcomer is found without editing a test."""

import dataclasses
import math
from functools import cache
from typing import Any

import pytest

from sweeper.classifier.classify import scaled_ops
from sweeper.config.compose import compose_tree
from sweeper.config.settings import read_space
from sweeper.models.llama import Llama
from sweeper.records import import_target
from sweeper.registry import build_plugin, plugins
from sweeper.scaling.gamma import GAMMAS
from sweeper.scaling.prescription import SETTING_FACTORS
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, ScaledOp, Update, standard_std
from sweeper.trial import defaults
from tests.refusals import raises_config_error
from tests.scaling.weights import weight
from tests.specs import specs_between

NAMES = sorted(set(plugins()["parameterization"]) - {"own"})


@cache
def config(name: str) -> dict[str, Any]:
    group: dict[str, Any] = compose_tree([f"parameterization={name}"])["parameterization"]
    return group


def parameterization(name: str, **fields: Any) -> Any:
    return build_plugin({k: v for k, v in config(name).items() if k != "space"} | fields)


def values(name: str) -> dict[str, float]:
    return {
        key: 2.0**value
        for key, value in defaults(read_space(config(name), SETTING_FACTORS)).items()
    }


@cache
def sizes(growth: int) -> tuple[ParamSpec, ...]:
    def llama(width: int, depth: int) -> Llama:
        return Llama(width=width, depth=depth, classes=40, seq_len=8, norm_gain=True)

    specs = specs_between(llama, base=(16, 1), target=(16 * growth, growth))
    for role in Role:
        ins = growth if role in (Role.HIDDEN, Role.READOUT) else 1
        outs = growth if role in (Role.HIDDEN, Role.EMBEDDING, Role.VECTOR) else 1
        more = {"name": f"a.{role}", "width": 16 * growth, "base_width": 16}
        specs.append(weight(role, 16 * outs, 16 * ins, (16, 16), **more))
    return tuple(specs)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_built_from_its_config_and_knows_its_space(name: str) -> None:
    space = read_space(config(name), SETTING_FACTORS)
    assert next(iter(space)) == "eta"
    for key, axis in space.items():
        assert axis.low <= axis.default <= axis.high, key
    fields = {field.name for field in dataclasses.fields(parameterization(name))}
    keys = config(name).keys() - {"_target_", "space"} | {"groups"}
    assert fields == keys, "the config shows every field but what any model may have"
    assert parameterization(name) == type(parameterization(name))(), (
        "the config's values are the class's own"
    )


@pytest.mark.parametrize("name", NAMES)
def test_any_space_may_hold_weight_decay_and_gammas_and_nothing_unknown(name: str) -> None:
    axis, made = {"low": -1, "high": 1, "default": 0}, config(name)
    more = dict.fromkeys(("weight_decay", *GAMMAS), axis)
    space = read_space(made | {"space": made["space"] | more}, SETTING_FACTORS)
    assert more.keys() <= space.keys() and next(iter(space)) == "eta"
    with raises_config_error("space.gama", axis):
        read_space(made | {"space": made["space"] | {"gama": axis}}, SETTING_FACTORS)


@pytest.mark.parametrize("name", NAMES)
def test_operations_get_what_the_model_has_a_buffer_for(name: str) -> None:
    model = Llama(width=32, depth=2, classes=40, seq_len=8, base_depth=1)
    buffers = {key for key, _ in model.named_buffers()}
    for op in scaled_ops(model):
        factors = parameterization(name).scale_op(op, values(name))
        assert {f"{op.name}.{key}" for key in factors} <= buffers
        assert all(math.isfinite(v) and v > 0 for v in factors.values())
    with pytest.raises(ValueError, match="convolution"):
        parameterization(name).scale_op(
            ScaledOp(name="x", kind="convolution", geometry={}), values(name)
        )


CLASSES = {name: import_target(plugins()["parameterization"][name]) for name in NAMES}
RELATIVE = [name for name in NAMES if getattr(CLASSES[name], "relative", False)]


@pytest.mark.parametrize("update", Update)
@pytest.mark.parametrize("name", RELATIVE)
def test_at_the_base_shape_nothing_changes(name: str, update: Update) -> None:
    made, ones = parameterization(name), dict.fromkeys(values(name), 1.0)
    for spec in [*sizes(1), *(large.at_base() for large in sizes(4))]:
        std = standard_std(spec, spec.fan_in)
        assert made.scale(spec, ones, update) == ParamScale(init_std=std), spec.name
    model = Llama(width=16, depth=2, classes=40, seq_len=8, base_depth=2)
    residuals = [op for op in scaled_ops(model) if op.kind == "residual"]
    assert len(residuals) == 4
    assert [made.scale_op(op, ones) for op in residuals] == [{"branch": 1.0, "skip": 1.0}] * 4


def test_at_base_undoes_the_target() -> None:
    small, large = ({s.name: s for s in sizes(growth)} for growth in (1, 4))
    assert {name: large[name].at_base() for name in small} == small
