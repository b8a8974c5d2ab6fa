"""Parameterizations relative to a base: standard, muP by mup, the scaled embedding, adjusted."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mup import MuReadout, set_base_shapes
from mup.init import normal_
from mup.optim import MuAdam, MuSGD
from torch import nn

from sweeper.classifier.classify import specs_between
from sweeper.engine.optimizers.first_order import AdamW
from sweeper.errors import ConfigError
from sweeper.models.llama import Llama
from sweeper.scaling.prescription import prescription_of
from sweeper.scaling.relative import MuP, ScaledEmbedding, Standard
from sweeper.scaling.spec import DepthRule, ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps

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


# muP against microsoft/mup: learning rates, decay, init and the readout's multiplier.


DEFAULTS = dict.fromkeys(MuP.hyperparameters, 1.0)
OPTIMIZERS = {Update.SIGN: MuAdam, Update.GRADIENT: MuSGD}


class Oracle(nn.Module):
    """An MLP in mup's own words, its hidden matrix of any aspect."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.up = nn.Linear(width, ratio * width)
        self.norm = nn.LayerNorm(ratio * width)
        self.down = nn.Linear(ratio * width, width, bias=False)
        self.readout = MuReadout(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.down(self.norm(self.up(self.embedding(tokens))))
        return self.readout(hidden)  # type: ignore[no-any-return]


def oracle(base: int, m: int, ratio: int) -> Oracle:
    """The model at width m x base with mup's shapes."""
    model = Oracle(m * base, ratio)
    set_base_shapes(model, Oracle(base, ratio), delta=Oracle(2 * base, ratio))
    return model


def specs(base: int, m: int, ratio: int) -> dict[str, ParamSpec]:
    """What our classifier says of the same model, with a plain readout."""

    def build(width: int, depth: int) -> nn.Module:
        model = Oracle(width, ratio)
        model.readout = nn.Linear(width, 10)  # type: ignore[assignment]
        return model

    sizes = {"base": (base, 1), "target": (m * base, 1)}
    return {s.name: s for s in specs_between(build, **sizes, inputs=torch.zeros(2, 3).long())}


shapes = st.tuples(st.integers(4, 24), st.integers(1, 9), st.integers(1, 4))


@given(shapes, st.sampled_from(list(OPTIMIZERS)))
@settings(max_examples=25, deadline=None)
def test_learning_rates_equal_the_oracle_s(shape: tuple[int, int, int], update: Update) -> None:
    model, mine = oracle(*shape), specs(*shape)
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer = OPTIMIZERS[update](model.parameters(), lr=1.0, weight_decay=0.1)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            scale = MuP(decay="scaled").scale(mine[name], DEFAULTS, update)
            assert scale.lr == pytest.approx(group["lr"], rel=1e-12), name
            # torch multiplies decay by the learning rate; ours is the product, a step's share.
            share = group["lr"] * group["weight_decay"]
            assert 0.1 * scale.weight_decay == pytest.approx(share, rel=1e-12), name


class Uneven(nn.Module):
    """Hidden matrices whose two sides grow by unequal factors."""

    def __init__(self, width: int, more: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.up = nn.Linear(width, width + more)
        self.down = nn.Linear(width + more, width)
        self.readout = MuReadout(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.readout(self.down(self.up(self.embedding(tokens))))  # type: ignore[no-any-return]


@given(st.integers(4, 24), st.integers(2, 9), st.integers(1, 40), st.sampled_from([*OPTIMIZERS]))
@settings(max_examples=20, deadline=None)
def test_rates_of_matrices_that_grow_unevenly_equal_the_oracles(
    base: int, m: int, more: int, update: Update
) -> None:
    model = Uneven(m * base, more)
    set_base_shapes(model, Uneven(base, more), delta=Uneven(2 * base, more))
    names = {id(p): name for name, p in model.named_parameters()}

    def build(width: int, depth: int) -> nn.Module:
        plain: Any = Uneven(width, more)
        plain.readout = nn.Linear(width, 10)
        return plain  # type: ignore[no-any-return]

    sizes = {"base": (base, 1), "target": (m * base, 1)}
    mine = {s.name: s for s in specs_between(build, **sizes, inputs=torch.zeros(2, 3).long())}
    for group in OPTIMIZERS[update](model.parameters(), lr=1.0).param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            ours = MuP().scale(mine[name], DEFAULTS, update).lr
            assert ours == pytest.approx(group["lr"], rel=1e-12), name


@pytest.mark.parametrize(
    ("update", "rows"),
    [
        (
            Update.SIGN,
            {"embedding.weight": (1, 1), "down.weight": (0.25, 4), "readout.weight": (1, 1)},
        ),
        (
            Update.GRADIENT,
            {
                "embedding.weight": (4, 0.25),
                "norm.weight": (4, 0.25),
                "up.bias": (4, 0.25),
                "readout.weight": (4, 0.25),
                "down.weight": (1, 1),
                "readout.bias": (1, 1),
            },
        ),
    ],
)
def test_numbers_by_hand(update: Update, rows: dict[str, tuple[float, float]]) -> None:
    """Width 256 on base 64, lr 1: (lr, weight decay over its global value)."""
    mine = specs(64, 4, 1)
    for name, (lr, decay) in rows.items():
        scale = MuP(decay="scaled").scale(mine[name], DEFAULTS, update)
        assert (scale.lr, scale.weight_decay / scale.lr) == (lr, decay), name


@given(st.sampled_from([32, 64]), st.sampled_from([4, 9, 16]))
@settings(max_examples=6, deadline=None)
def test_init_equals_the_oracle_s(base: int, m: int) -> None:
    """mup's `normal_` with the base model's std gives the std that we prescribe."""
    model, mine = oracle(base, m, 2), specs(base, m, 2)
    torch.manual_seed(0)
    for name in ("up.weight", "down.weight", "readout.weight"):
        weight = model.get_parameter(name)
        normal_(weight, std=1 / sqrt(mine[name].base_fan_in))
        expected = MuP().scale(mine[name], DEFAULTS).init_std
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("m", [1, 2, 8])
def test_readout_multiplier_equals_the_oracle_s(m: int) -> None:
    readout, x = oracle(32, m, 1).readout, torch.randn(3, 32 * m)
    multiplier = MuP().scale(specs(32, m, 1)["readout.weight"], DEFAULTS).multiplier
    torch.testing.assert_close(readout(x) - readout.bias, multiplier * (x @ readout.weight.T))


@given(shapes)
@settings(max_examples=20, deadline=None)
def test_everett_s_convention_is_the_same_parameterization(shape: tuple[int, int, int]) -> None:
    """Erratum E1 (docs/papers.md): the function and the length of a step agree."""
    for spec in specs(*shape).values():
        one = MuP().scale(spec, DEFAULTS)
        other = MuP(convention="everett").scale(spec, DEFAULTS)
        assert one.multiplier * one.init_std == pytest.approx(other.multiplier * other.init_std)
        assert one.multiplier * one.lr == pytest.approx(other.multiplier * other.lr)
        assert one.eps / one.multiplier == pytest.approx(other.eps / other.multiplier)


def hidden(**more: Any) -> ParamSpec:
    """A square hidden weight, four times wider than its base."""
    fields = {"fan_in": 64, "fan_out": 64, "base_fan_in": 16, "base_fan_out": 16}
    shape, base_shape = (64, 64), (16, 16)
    return ParamSpec(
        name="w", role=Role.HIDDEN, shape=shape, base_shape=base_shape, **fields | more
    )


BRANCH = ScaledOp(
    name="r", kind="residual", geometry={"branch": 3, "branches": 16, "base_branches": 4}
)


def test_depth_mup() -> None:
    deep = hidden(residual=True, depth=8, base_depth=2)
    assert MuP().scale(deep, DEFAULTS).lr == 0.25 * 0.5
    assert MuP().scale(deep, DEFAULTS, Update.GRADIENT).lr == 1.0
    assert MuP().scale_op(BRANCH, DEFAULTS) == {"branch": 0.5, "skip": 1.0}


def test_completep() -> None:
    """Branch m_L^-alpha; rate m^-1 m_L^(alpha-1); eps m^-1 m_L^-alpha; decay times m."""
    deep = hidden(residual=True, depth=8, base_depth=2)
    for alpha in (0.5, 0.75, 1.0):
        parameterization = MuP(depth="completep", completep_alpha=alpha, decay="scaled")
        scale = parameterization.scale(deep, DEFAULTS)
        assert scale.lr == pytest.approx(0.25 * 4 ** (alpha - 1))
        assert scale.eps == pytest.approx(0.25 * 4**-alpha)
        assert scale.weight_decay / scale.lr == pytest.approx(4.0)
        assert parameterization.scale_op(BRANCH, DEFAULTS)["branch"] == pytest.approx(4**-alpha)
    assert MuP(depth="completep", completep_alpha=0.5).scale(deep, DEFAULTS) == MuP().scale(
        deep, DEFAULTS
    )


def test_attention_is_over_head_size() -> None:
    op = ScaledOp(name="a", kind="attention", geometry={"head_size": 16, "seq_len": 8})
    assert MuP().scale_op(op, DEFAULTS | {"alpha_attn": 2.0}) == {"logit": 0.125}


def test_hyperparameters_act_where_their_names_say() -> None:
    def build(width: int, depth: int) -> Llama:
        return Llama(width=width, depth=depth, classes=64, seq_len=16)

    values = dict.fromkeys(MuP.hyperparameters, 2.0)
    spec = {s.role: s for s in specs_between(build, base=(16, 1), target=(64, 1))}
    embedding = MuP().scale(spec[Role.EMBEDDING], values)
    assert (embedding.init_std, embedding.multiplier, embedding.lr) == (2.0, 2.0, 1.0)
    rate = prescription_of(spec[Role.EMBEDDING], MuP(), AdamW(), PlainHps(values)).lr
    assert rate == 2.0 * 2.0, "eta times eta_emb"
    readout = MuP().scale(spec[Role.READOUT], values)
    assert (readout.multiplier, readout.lr) == (2.0 / 4, 1.0)
    assert MuP().scale(spec[Role.HIDDEN], values).lr == pytest.approx(1 / 4)


def test_sigma_init_as_printed_is_a_deviation() -> None:
    """Erratum E18: at the base the std of every drawn weight, and over root m beyond it."""
    rules, values = MuP(sigma="deviation"), DEFAULTS | {"sigma_init": 0.02}
    for spec in specs_between(build, base=(16, 1), target=(64, 1)):
        expected = 0.02 if spec.role in (Role.EMBEDDING, Role.READOUT) else 0.02 / sqrt(4)
        assert rules.scale(spec, values).init_std == pytest.approx(expected)


# Kalra and Barkeshli's rule: of all learning rates the embedding's alone has a factor of width.


GAMMAS_OF_ONE = PlainHps(dict.fromkeys(ScaledEmbedding.hyperparameters, 1.0))

HALF = PlainHps({**GAMMAS_OF_ONE, "eta": 0.5})


def with_gains(width: int, depth: int) -> Llama:
    return Llama(width=width, depth=depth, classes=64, seq_len=16, norm_gain=True)


def specs_of_gained(width: int = 64, base: int = 16) -> list[ParamSpec]:
    return specs_between(with_gains, base=(base, 1), target=(width, 1))


def rates(parameterization: ScaledEmbedding, width: int = 64) -> dict[Role, float]:
    return {
        spec.role: parameterization.scale(spec, GAMMAS_OF_ONE).lr for spec in specs_of_gained(width)
    }


def test_the_embedding_s_rate_is_times_the_width_as_printed() -> None:
    shared = dict.fromkeys((Role.HIDDEN, Role.READOUT, Role.VECTOR), 1.0)
    assert rates(ScaledEmbedding()) == {Role.EMBEDDING: 64.0, **shared}
    assert rates(ScaledEmbedding(factor="ratio")) == {Role.EMBEDDING: 4.0, **shared}


def test_over_the_width_the_shared_rate_falls_instead() -> None:
    shared = dict.fromkeys((Role.HIDDEN, Role.READOUT, Role.VECTOR), 0.25)
    over = ScaledEmbedding(shared="over_width")
    assert rates(over) == {Role.EMBEDDING: 16.0, **shared}


def test_with_the_ratio_it_is_standard_with_full_alignment_but_for_gains() -> None:
    ours, full = ScaledEmbedding(factor="ratio", shared="over_width"), Standard(alignment="full")
    for spec in specs_of_gained():
        one, other = ours.scale(spec, GAMMAS_OF_ONE), full.scale(spec, GAMMAS_OF_ONE)
        assert (one.init_std, one.multiplier) == (other.init_std, other.multiplier)
        assert (one.lr == other.lr) is (spec.role is not Role.VECTOR), spec.name


def test_the_base_model_is_the_standard_one_with_the_ratio_alone() -> None:
    for spec in specs_of_gained(16):
        standard = Standard().scale(spec, GAMMAS_OF_ONE)
        assert ScaledEmbedding(factor="ratio").scale(spec, GAMMAS_OF_ONE) == standard
        times = 16.0 if spec.role is Role.EMBEDDING else 1.0
        assert ScaledEmbedding().scale(spec, GAMMAS_OF_ONE).lr == times * standard.lr


def test_scaled_decay_leaves_the_factor_of_width_out() -> None:
    embedding = next(spec for spec in specs_of_gained() if spec.role is Role.EMBEDDING)
    parameterization = ScaledEmbedding(factor="ratio", decay="scaled")
    assert parameterization.scale(embedding, HALF).weight_decay == 0.5
    coupled = ScaledEmbedding(factor="ratio", decay="coupled")
    assert coupled.scale(embedding, HALF).weight_decay == 2.0


def test_a_tied_table_gives_logits_over_the_growth() -> None:
    geometry = {"fan_in": 64, "base_fan_in": 16, "built_in": 1.0}
    op = ScaledOp(name="head", kind="tied_readout", geometry=geometry)
    assert ScaledEmbedding().scale_op(op, GAMMAS_OF_ONE) == {"output": 0.25}


@pytest.mark.parametrize("update", [one for one in Update if one is not Update.SIGN])
def test_other_updates_than_adam_s_are_refused(update: Update) -> None:
    with pytest.raises(ConfigError) as caught:
        ScaledEmbedding().scale(specs_of_gained()[0], GAMMAS_OF_ONE, update)
    assert (caught.value.key, caught.value.value) == (
        "_target_",
        "sweeper.scaling.relative.ScaledEmbedding",
    )


@pytest.mark.parametrize("depth", ["none", "depth_mup", "completep"])
def test_all_but_rates_is_the_standard_one_at_any_depth(depth: DepthRule) -> None:
    ours, standard = ScaledEmbedding(depth=depth), Standard(depth=depth)
    for spec in specs_between(with_gains, base=(16, 1), target=(64, 4)):
        one, other = ours.scale(spec, GAMMAS_OF_ONE), standard.scale(spec, GAMMAS_OF_ONE)
        factor = 64 if spec.role is Role.EMBEDDING else 1
        assert one.lr == pytest.approx(factor * other.lr)
        assert (one.init_std, one.eps, one.weight_decay) == (other.init_std, other.eps, 1.0)
