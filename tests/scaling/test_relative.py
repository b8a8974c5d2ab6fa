"""Parameterizations relative to a base: muP by mup, the scaled embedding."""

from functools import cache, partial
from itertools import product
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

from sweeper.engine.optimizers.first_order import AdamW
from sweeper.models.llama import Llama
from sweeper.scaling.prescription import prescription_of
from sweeper.scaling.relative import (
    Alignment,
    MeanField,
    MuP,
    Ntk,
    Relative,
    ScaledEmbedding,
    Standard,
)
from sweeper.scaling.spec import DepthRule, ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps
from tests.refusals import raises_config_error
from tests.scaling.weights import weight
from tests.specs import specs_between

ONES = dict.fromkeys(Standard.hyperparameters, 1.0)


def build(width: int, depth: int) -> Llama:
    return Llama(width=width, depth=depth, classes=64, seq_len=16)


# muP against microsoft/mup: learning rates, decay, init and the readout's multiplier.


DEFAULTS = dict.fromkeys(MuP.hyperparameters, 1.0)
OPTIMIZERS = {Update.SIGN: MuAdam, Update.GRADIENT: MuSGD}
Shape = tuple[int, int, int, int]
"""The base's width, the target's over it, and the FFN's inner width: a multiple, and more."""


class Oracle(nn.Module):
    def __init__(self, width: int, ratio: int, more: int) -> None:
        super().__init__()
        inner = ratio * width + more
        self.embedding = nn.Embedding(16, width)
        self.up = nn.Linear(width, inner)
        self.norm = nn.LayerNorm(inner)
        self.down = nn.Linear(inner, width, bias=False)
        self.readout = MuReadout(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.down(self.norm(self.up(self.embedding(tokens))))
        return self.readout(hidden)  # type: ignore[no-any-return]


def oracle(base: int, m: int, ratio: int = 1, more: int = 0) -> Oracle:
    model = Oracle(m * base, ratio, more)
    delta = Oracle(2 * base, ratio, more)
    set_base_shapes(model, Oracle(base, ratio, more), delta=delta)
    return model


def specs(base: int, m: int, ratio: int = 1, more: int = 0) -> dict[str, ParamSpec]:
    def build(width: int, depth: int) -> nn.Module:
        model = Oracle(width, ratio, more)
        model.readout = nn.Linear(width, 10)  # type: ignore[assignment]
        return model

    sizes = {"base": (base, 1), "target": (m * base, 1)}
    return {s.name: s for s in specs_between(build, **sizes, inputs=torch.zeros(2, 3).long())}


shapes = st.tuples(
    st.integers(4, 24), st.integers(1, 9), st.integers(1, 4), st.sampled_from([0, 0, 1, 17])
)


@given(shapes)
@settings(max_examples=20)
def test_learning_rates_equal_the_oracle_s(shape: Shape) -> None:
    model, mine = oracle(*shape), specs(*shape)
    names = {id(p): name for name, p in model.named_parameters()}
    for update, optimizer in OPTIMIZERS.items():
        for group in optimizer(model.parameters(), lr=1.0, weight_decay=0.1).param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                scale = MuP(decay="scaled").scale(mine[name], DEFAULTS, update)
                assert scale.lr == pytest.approx(group["lr"], rel=1e-12), name
                # torch multiplies decay by the learning rate; ours is a step's share.
                share = group["lr"] * group["weight_decay"]
                assert 0.1 * scale.weight_decay == pytest.approx(share, rel=1e-12), name


@pytest.mark.parametrize(("base", "m"), [(32, 4), (64, 9)])
def test_init_equals_the_oracle_s(base: int, m: int) -> None:
    """mup's `normal_` with the base model's std gives the std that we prescribe."""
    model, mine = oracle(base, m, 2), specs(base, m, 2)
    torch.manual_seed(0)
    for name in ("up.weight", "down.weight", "readout.weight"):
        weight = model.get_parameter(name)
        normal_(weight, std=1 / sqrt(mine[name].base_fan_in))
        expected = MuP().scale(mine[name], DEFAULTS).init_std
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("m", [1, 8])
def test_readout_multiplier_equals_the_oracle_s(m: int) -> None:
    readout, x = oracle(32, m).readout, torch.randn(3, 32 * m)
    multiplier = MuP().scale(specs(32, m)["readout.weight"], DEFAULTS).multiplier
    torch.testing.assert_close(readout(x) - readout.bias, multiplier * (x @ readout.weight.T))


EVERETT = partial(MuP, convention="everett")
ALIKE: list[tuple[Any, Any]] = [(Standard, Ntk), (MuP, MeanField), (MuP, EVERETT)]
HEADS = ScaledOp(
    name="a", kind="attention", geometry={"head_size": 8, "seq_len": 4, "causal": True}
)


def gauge_free(rules: Relative, spec: ParamSpec, update: Update) -> list[float]:
    """What no multiplier changes: the start, the length of a step, eps over the gradient's size."""
    s = rules.scale(spec, DEFAULTS | ONES, update)
    power = 2 if update is Update.GRADIENT else 0 if update.relative else 1
    return [s.multiplier * s.init_std, s.multiplier**power * s.lr, s.eps / s.multiplier]


@pytest.mark.parametrize("shape", [(4, 9, 3, 0), (16, 4, 1, 5)])
@pytest.mark.parametrize("update", Update)
def test_equivalent_rules_start_and_step_alike(update: Update, shape: Shape) -> None:
    """By the abc symmetry; of muP's conventions see erratum E1 (docs/papers.md)."""
    ways = ({"alignment": "full", "depth": "none"}, {"alignment": "none", "depth": "completep"})
    for (one, other), shared in product(ALIKE, ways):
        first, second = one(**shared), other(**shared)
        for spec in specs(*shape).values():
            expected = gauge_free(first, spec, update)
            assert gauge_free(second, spec, update) == pytest.approx(expected), spec.name
        for op in (BRANCH, HEADS):
            assert first.scale_op(op, DEFAULTS | ONES) == second.scale_op(op, DEFAULTS | ONES)


def moved(update: Update, std: float, out: int, into: int, alignment: Alignment) -> float:
    """RMS by which a step of rate 1 moves the outputs, of inputs that it has seen or has not."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, d, weight, noise = (normal(*s) for s in ((into, 8), (out, 8), (out, into), (out, into)))
    step = torch.sign(d @ x.T)
    if update.orthogonal:
        # Of full rank, as a momentum becomes in time: 8 examples alone have 8 directions.
        rows, _, columns = torch.linalg.svd(d @ x.T + 1e-9 * noise, full_matrices=False)
        step = rows @ columns
    if update.relative:
        step = step * std * weight.norm() / step.norm()
    seen = x if alignment == "full" else normal(into, 64)
    return float((step @ seen).square().mean().sqrt())


@pytest.mark.parametrize("alignment", ["full", "none"])
@pytest.mark.parametrize("update", [u for u in Update if u.relative or u.orthogonal])
@pytest.mark.parametrize("rules", [MuP, MeanField, Ntk, Standard])
def test_a_step_moves_outputs_alike_however_the_sides_grow(
    rules: type[Relative], update: Update, alignment: Alignment
) -> None:
    """Powers of m by which the sides grow; a projection down and a router are as wide at any m."""
    made, growths = rules(alignment=alignment), ((1, 1), (2, 1), (1, 2), (0, 2))
    cases = [(Role.HIDDEN, base, by) for base in ((32, 32), (64, 16)) for by in growths]
    cases += [(Role.DOWN, (32, 32), (0, 2))] * (not update.orthogonal)
    for role, base, by in cases:
        changes = []
        for m in (1, 3):
            out, into = (side * m**power for side, power in zip(base, by, strict=True))
            scale = made.scale(weight(role, out, into, base), DEFAULTS | ONES, update)
            size = moved(update, scale.init_std, out, into, alignment)
            changes.append(scale.multiplier * scale.lr * size)
        assert changes[1] / changes[0] == pytest.approx(1.0, rel=0.3), (role, base, by)


DEEP = weight(Role.HIDDEN, 64, 64, (16, 16), residual=True, depth=8, base_depth=2)
BRANCH = ScaledOp(
    name="r", kind="residual", geometry={"branch": 3, "branches": 16, "base_branches": 4}
)


def test_depth_mup() -> None:
    assert MuP().scale(DEEP, DEFAULTS).lr == 0.25 * 0.5
    assert MuP().scale(DEEP, DEFAULTS, Update.GRADIENT).lr == 1.0
    assert MuP().scale_op(BRANCH, DEFAULTS) == {"branch": 0.5, "skip": 1.0}


def test_completep() -> None:
    """Branch m_L^-alpha; rate m^-1 m_L^(alpha-1); eps m^-1 m_L^-alpha; decay times m."""
    for alpha in (0.5, 0.75, 1.0):
        parameterization = MuP(depth="completep", completep_alpha=alpha, decay="scaled")
        scale = parameterization.scale(DEEP, DEFAULTS)
        assert scale.lr == pytest.approx(0.25 * 4 ** (alpha - 1))
        assert scale.eps == pytest.approx(0.25 * 4**-alpha)
        assert scale.weight_decay / scale.lr == pytest.approx(4.0)
        assert parameterization.scale_op(BRANCH, DEFAULTS)["branch"] == pytest.approx(4**-alpha)
    half = MuP(depth="completep", completep_alpha=0.5)
    assert half.scale(DEEP, DEFAULTS) == MuP().scale(DEEP, DEFAULTS)


def test_hyperparameters_act_where_their_names_say() -> None:
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


@cache
def gained(width: int = 64, depth: int = 1) -> tuple[ParamSpec, ...]:
    def build(width: int, depth: int) -> Llama:
        return Llama(width=width, depth=depth, classes=64, seq_len=16, norm_gain=True)

    return tuple(specs_between(build, base=(16, 1), target=(width, depth)))


def rates(parameterization: ScaledEmbedding) -> dict[Role, float]:
    return {spec.role: parameterization.scale(spec, GAMMAS_OF_ONE).lr for spec in gained()}


def test_the_embedding_s_rate_is_times_the_width_as_printed() -> None:
    shared = dict.fromkeys((Role.HIDDEN, Role.READOUT, Role.VECTOR), 1.0)
    assert rates(ScaledEmbedding()) == {Role.EMBEDDING: 64.0, **shared}
    assert rates(ScaledEmbedding(factor="ratio")) == {Role.EMBEDDING: 4.0, **shared}


def test_over_the_width_the_shared_rate_falls_instead() -> None:
    shared = dict.fromkeys((Role.HIDDEN, Role.READOUT, Role.VECTOR), 0.25)
    over = ScaledEmbedding(shared="over_width")
    assert rates(over) == {Role.EMBEDDING: 16.0, **shared}


def test_scaled_decay_leaves_the_factor_of_width_out() -> None:
    embedding = next(spec for spec in gained() if spec.role is Role.EMBEDDING)
    half = PlainHps({**GAMMAS_OF_ONE, "eta": 0.5})
    for decay, expected in (("scaled", 0.5), ("coupled", 2.0)):
        rules = ScaledEmbedding(factor="ratio", decay=decay)  # type: ignore[arg-type]
        assert rules.scale(embedding, half).weight_decay == expected


def test_other_updates_than_adam_s_are_refused() -> None:
    for update in set(Update) - {Update.SIGN}:
        with raises_config_error("_target_", "sweeper.scaling.relative.ScaledEmbedding"):
            ScaledEmbedding().scale(gained()[0], GAMMAS_OF_ONE, update)


def test_a_tied_table_gives_logits_over_the_growth() -> None:
    geometry = {"fan_in": 64, "base_fan_in": 16, "built_in": 1.0}
    op = ScaledOp(name="head", kind="tied_readout", geometry=geometry)
    assert ScaledEmbedding().scale_op(op, GAMMAS_OF_ONE) == {"output": 0.25}


@pytest.mark.parametrize("depth", ["none", "depth_mup", "completep"])
def test_all_but_rates_is_the_standard_one_at_any_depth(depth: DepthRule) -> None:
    ours, standard = ScaledEmbedding(depth=depth), Standard(depth=depth)
    for spec in gained(depth=4):
        scale, usual = ours.scale(spec, GAMMAS_OF_ONE), standard.scale(spec, GAMMAS_OF_ONE)
        factor = 64 if spec.role is Role.EMBEDDING else 1
        assert scale.lr == pytest.approx(factor * usual.lr)
        assert (scale.init_std, scale.eps, scale.weight_decay) == (usual.init_std, usual.eps, 1.0)
