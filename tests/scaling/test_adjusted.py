"""Adjusted parameterizations: nothing at the base, further powers of the width above it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.errors import ConfigError
from sweeper.registry import build_plugin
from sweeper.scaling.relative import Adjusted, Change, MuP, Standard
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp

STANDARD = {"_target_": "sweeper.scaling.relative.Standard"}
MUP_S_RULES = {"hidden": Change(c=1.0), "readout": Change(b=0.5, c=1.0)}
"""What the standard parameterization lacks to muP under Adam (u-muP paper, Table 1)."""


def spec(role: Role, width: int) -> ParamSpec:
    fans = {Role.EMBEDDING: (1, width), Role.READOUT: (width, 7), Role.FIXED: (3, 3)}
    base = {Role.EMBEDDING: (1, 16), Role.READOUT: (16, 7), Role.FIXED: (3, 3)}
    fan_in, fan_out = fans.get(role, (width, width))
    base_in, base_out = base.get(role, (16, 16))
    return ParamSpec(
        name=str(role),
        role=role,
        shape=(fan_out, fan_in),
        base_shape=(base_out, base_in),
        fan_in=fan_in,
        fan_out=fan_out,
        base_fan_in=base_in,
        base_fan_out=base_out,
        width=width,
        base_width=16,
        lookup=role is Role.EMBEDDING,
    )


def ones(parameterization: object) -> dict[str, float]:
    return dict.fromkeys(parameterization.hyperparameters, 1.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("role", [Role.EMBEDDING, Role.HIDDEN, Role.READOUT])
@pytest.mark.parametrize("width", [16, 64, 256])
def test_the_standard_parameterization_adjusted_is_mup(role: Role, width: int) -> None:
    """Multiplier x init std and multiplier x learning rate are muP's: the same training."""
    adjusted = Adjusted(parameterization=STANDARD, **MUP_S_RULES)  # type: ignore[arg-type]
    mine = adjusted.scale(spec(role, width), ones(adjusted))
    theirs = MuP().scale(spec(role, width), ones(MuP()))
    assert mine.multiplier * mine.init_std == pytest.approx(theirs.multiplier * theirs.init_std)
    assert mine.multiplier * mine.lr == pytest.approx(theirs.multiplier * theirs.lr)


@pytest.mark.parametrize("role", list(Role))
def test_nothing_changes_at_the_base(role: Role) -> None:
    adjusted = Adjusted(parameterization=STANDARD, **MUP_S_RULES, vector=Change(c=3.0))  # type: ignore[arg-type]
    at_base = spec(role, 16)
    assert adjusted.scale(at_base, ones(adjusted)) == Standard().scale(at_base, ones(adjusted))


def test_what_does_not_grow_is_left_alone() -> None:
    fixed, parameterization = replace(spec(Role.FIXED, 64)), Adjusted(parameterization=STANDARD)
    assert parameterization.scale(fixed, ones(parameterization)) == Standard().scale(
        fixed, ones(parameterization)
    )


@pytest.mark.parametrize("size", [8, 32])
def test_attention_over_the_head_size(size: int) -> None:
    """1/sqrt(d) with a further power of 1/2 is 1/d, but for its value at the base."""
    geometry = {"head_size": size, "seq_len": 4, "causal": True}
    op = ScaledOp(name="core", kind="attention", geometry=geometry)
    parameterization = Adjusted(parameterization=STANDARD, attention=0.5, head_size=8)
    assert parameterization.scale_op(op, ones(parameterization))["logit"] == pytest.approx(
        8**0.5 / size
    )
    loss = ScaledOp(name="loss", kind="loss", geometry={})
    assert parameterization.scale_op(loss, ones(parameterization)) == {"logit": 1.0}


def test_is_built_from_a_config_and_refuses_an_impossible_parameterization() -> None:
    config = {"_target_": "sweeper.scaling.relative.Adjusted", "parameterization": STANDARD}
    assert build_plugin(config | {"hidden": {"c": 1.0}}).hidden == Change(c=1.0)
    with pytest.raises(ConfigError, match=r"parameterization\.depht"):
        _ = build_plugin(
            config | {"parameterization": STANDARD | {"depht": "none"}}
        ).hyperparameters
