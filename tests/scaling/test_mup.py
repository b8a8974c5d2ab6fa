"""muP against microsoft/mup, in whose gauge hidden and readout weights are written."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mup import MuReadout, set_base_shapes
from mup.init import normal_
from mup.optim import MuAdam
from torch import nn

from sweeper.models.classify import specs_between
from sweeper.models.llama import Llama
from sweeper.scaling.mup import MuP
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Site

DEFAULTS = dict.fromkeys(MuP.hyperparameters, 1.0)


def scale_of(role: Role, fan_in: int, base_fan_in: int, **more: object) -> ParamScale:
    spec = ParamSpec(
        name="w",
        role=role,
        shape=(7, fan_in),
        base_shape=(7, base_fan_in),
        fan_in=fan_in,
        fan_out=7,
        base_fan_in=base_fan_in,
        base_fan_out=7,
        **more,  # type: ignore[arg-type]
    )
    return MuP().scale(spec, DEFAULTS)


class Oracle(nn.Module):
    """An MLP in mup's own words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(16, width, bias=False)
        self.hidden = nn.Linear(width, width, bias=False)
        self.readout = MuReadout(width, 10, bias=False)


def oracle(base: int, width: int) -> tuple[Oracle, dict[str, float]]:
    """The model with mup's shapes and init of std 1/sqrt(base), and its Adam learning rates."""
    model = Oracle(width)
    set_base_shapes(model, Oracle(base), delta=Oracle(2 * base))
    names = {id(p): name.split(".")[0] for name, p in model.named_parameters()}
    optimizer = MuAdam(model.parameters(), lr=1.0)
    rates = {names[id(p)]: g["lr"] for g in optimizer.param_groups for p in g["params"]}
    return model, rates


@given(st.sampled_from([16, 32, 64]), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=12, deadline=None)
def test_learning_rates_equal_the_oracle(base: int, m: int) -> None:
    _, rates = oracle(base, m * base)
    assert rates["hidden"] == pytest.approx(scale_of(Role.HIDDEN, m * base, base).lr)
    assert rates["embedding"] == scale_of(Role.EMBEDDING, 16, 16).lr
    # mup's readout: weights sqrt(m) times ours in no gauge of Adam's rate, input over m.
    assert rates["readout"] == scale_of(Role.READOUT, m * base, base).lr


@given(st.sampled_from([32, 64]), st.sampled_from([4, 16]))
@settings(max_examples=4, deadline=None)
def test_init_equals_the_oracle(base: int, m: int) -> None:
    """mup's `normal_` with the base model's std gives the std that we prescribe."""
    model, _ = oracle(base, m * base)
    torch.manual_seed(0)
    for name, role in (("hidden", Role.HIDDEN), ("readout", Role.READOUT)):
        weight = model.get_parameter(f"{name}.weight")
        normal_(weight, std=1 / sqrt(base))
        mine = scale_of(role, m * base, base).init_std
        assert float(weight.detach().std()) == pytest.approx(mine, rel=0.05)


@pytest.mark.parametrize("m", [1, 2, 8])
def test_readout_multiplier_equals_the_oracle(m: int) -> None:
    model, _ = oracle(32, 32 * m)
    readout, x = model.readout, torch.randn(3, 32 * m)
    multiplier = scale_of(Role.READOUT, 32 * m, 32).multiplier
    expected = multiplier * (x @ readout.weight.T)
    torch.testing.assert_close(readout(x), expected)


def test_depth_mup() -> None:
    deep = scale_of(Role.HIDDEN, 64, 64, residual=True, depth=8, base_depth=2)
    assert deep.lr == 0.5
    site = Site(
        name="r",
        kind="residual",
        geometry={"branch": 3, "branches": 16, "base_branches": 4},
    )
    assert MuP().site(site, DEFAULTS) == {"branch": 0.5, "skip": 1.0}


def test_attention_is_over_head_size() -> None:
    site = Site(name="a", kind="attention", geometry={"head_size": 16, "seq_len": 8})
    assert MuP().site(site, DEFAULTS | {"alpha_attn": 2.0}) == {"logit": 0.125}


def build(width: int, depth: int) -> Llama:
    return Llama(width=width, depth=depth, classes=64, seq_len=16)


@given(st.sampled_from([16, 32, 48]), st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_at_base_shape_nothing_changes(width: int, depth: int) -> None:
    for spec in specs_between(build, base=(width, depth), target=(width, depth)):
        scale = MuP().scale(spec, DEFAULTS)
        std = 1 / sqrt(spec.fan_in) if spec.role in ("hidden", "readout") else 1.0
        assert scale == ParamScale(init_std=pytest.approx(std))  # type: ignore[arg-type]


def test_hyperparameters_act_where_their_names_say() -> None:
    values = dict.fromkeys(MuP.hyperparameters, 2.0)
    spec = {s.role: s for s in specs_between(build, base=(16, 1), target=(64, 1))}
    embedding = MuP().scale(spec[Role.EMBEDDING], values)
    assert (embedding.init_std, embedding.multiplier, embedding.lr) == (2.0, 2.0, 2.0)
    readout = MuP().scale(spec[Role.READOUT], values)
    assert (readout.multiplier, readout.lr) == (2.0 / 4, 1.0)
    assert MuP().scale(spec[Role.HIDDEN], values).lr == pytest.approx(1 / 4)
