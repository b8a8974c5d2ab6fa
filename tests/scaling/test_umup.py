"""u-muP against numbers by hand, the errata (docs/papers.md) and Graphcore's unit-scaling."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
import unit_scaling.functional as U
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_scaling.core.functional import transformer_residual_scaling_rule
from unit_scaling.optim import lr_scale_func_adam
from unit_scaling.parameter import Parameter

from sweeper.scaling.spec import Role, ScaledOp, Update
from sweeper.scaling.umup import UMuP, attention_scale, residual_tau
from tests.refusals import raises_config_error
from tests.scaling.weights import weight as spec

DEFAULTS = dict.fromkeys(UMuP.hyperparameters, 1.0)
ALPHA = st.floats(0.1, 10.0)


@given(st.integers(2, 40), st.integers(1, 64), ALPHA, st.booleans())
@settings(max_examples=50)
def test_attention_scale_equals_the_oracle(s: int, d: int, alpha: float, causal: bool) -> None:
    zeros, ones = torch.zeros(1, 1, s, d).double(), torch.ones(1, 1, s, d).double()
    # Averages of ones are ones: what is left is the oracle's factor.
    out = U.scaled_dot_product_attention(zeros, zeros, ones, is_causal=causal, mult=alpha)
    assert float(out[0, 0, 0, 0]) == pytest.approx(attention_scale(s, d, alpha, causal=causal))


@given(st.integers(1, 40), ALPHA, ALPHA)
def test_tau_equals_the_oracle(layers: int, residual: float, ratio: float) -> None:
    oracle = transformer_residual_scaling_rule(residual, ratio)
    for branch in range(1, 2 * layers + 1):
        mine = residual_tau(branch, 2 * layers, residual, ratio)
        assert mine == pytest.approx(oracle(branch - 1, 2 * layers) ** 2, rel=1e-12)


@given(st.integers(1, 12), ALPHA, ALPHA)
def test_tau_with_the_appendix_s_depth(layers: int, residual: float, ratio: float) -> None:
    """Eq. 22 with the squares of erratum E4 alone: L, the number of branches, as it is printed."""
    branches = 2 * layers
    ffn = 2 / (ratio**2 + 1) * residual**2
    attention, rules = ratio**2 * ffn, UMuP(residual_share="total")
    hps = DEFAULTS | {"alpha_residual": residual, "alpha_residual_attn_ratio": ratio}
    for branch in range(1, branches + 1):
        before = (branch - 1) // 2
        odd = branch % 2 == 1
        below = branches + before * (attention + ffn) + (0 if odd else attention)
        tau = (attention if odd else ffn) / below
        geometry = {"branch": branch, "branches": branches, "base_branches": branches}
        values = rules.scale_op(ScaledOp(name="r", kind="residual", geometry=geometry), hps)
        assert values["branch"] == pytest.approx(sqrt(tau / (1 + tau)), rel=1e-12)


def unsquared_tau(branch: int, attention: float, ffn: float) -> float:
    """tau as C.3 prints it, for an embedding's multiplier of 1."""
    before = (branch - 1) // 2
    if branch % 2:
        return attention / (1 + before * (attention + ffn))
    return ffn / (1 + (before + 1) * attention + before * ffn)


def residual_step(tau: float, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The stream after a branch that sees its direction alone, as behind a norm."""
    return (sqrt(tau) * weight @ x / x.norm() + x) / sqrt(1 + tau)


@pytest.mark.parametrize(
    ("layers", "residual", "ratio"), [(1, 0.5, 0.5), (3, 2.0, 1 / 3), (6, 0.25, 4.0)]
)
def test_the_residual_parameterization_is_the_plain_network_rescaled(
    layers: int, residual: float, ratio: float
) -> None:
    """Lemma C.1 with errata E4 and E6: R_l over the root of the sum of squared multipliers."""
    ffn = residual * sqrt(2 / (ratio**2 + 1)) / sqrt(layers)
    attention = ratio * ffn
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2 * layers, 8, 8, generator=generator, dtype=torch.float64)
    x = torch.randn(8, generator=generator, dtype=torch.float64)
    plain, scaled, printed, variance = x, x, x, 1.0
    for branch, weight in enumerate(weights, 1):
        multiplier = attention if branch % 2 else ffn
        plain = multiplier * weight @ plain / plain.norm() + plain
        variance += multiplier**2
        scaled = residual_step(residual_tau(branch, 2 * layers, residual, ratio), weight, scaled)
        printed = residual_step(unsquared_tau(branch, attention, ffn), weight, printed)
    torch.testing.assert_close(scaled, plain / sqrt(variance), rtol=1e-12, atol=1e-12)
    assert float((printed - plain / sqrt(variance)).norm()) > 0.1


@given(st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 100), st.booleans())
@settings(max_examples=50)
def test_learning_rates_equal_the_oracle(n_in: int, n_out: int, depth: int, inside: bool) -> None:
    with torch.device("meta"):
        weight = torch.empty(n_out, n_in)
    oracle = Parameter(weight, mup_type="weight", mup_scaling_depth=depth if inside else None)
    mine = UMuP().scale(spec(Role.HIDDEN, n_out, n_in, residual=inside, depth=depth), DEFAULTS)
    assert mine.lr == pytest.approx(lr_scale_func_adam(oracle))


def test_learning_rates_by_hand() -> None:
    """The oracle has hidden weights; the embedding's rule can be switched off."""
    embedding = spec(Role.EMBEDDING, 256, 1000)
    assert UMuP().scale(embedding, DEFAULTS).lr == 0.0625
    assert UMuP(scaled_embedding_lr=False).scale(embedding, DEFAULTS).lr == 1.0
    assert UMuP().scale(spec(Role.READOUT, 1000, 256), DEFAULTS).lr == 1.0
    fixed = UMuP().scale(spec(Role.FIXED, 7, 16), DEFAULTS)
    assert (fixed.init_std, fixed.multiplier, fixed.lr) == (1.0, 0.25, 0.25)


@pytest.mark.parametrize("role", Role)
def test_its_rates_are_adam_s_and_no_other_update_gets_them(role: Role) -> None:
    weight, parameterization = spec(role, 64, 32), UMuP()
    assert parameterization.scale(weight, DEFAULTS, Update.PARAMETER) == parameterization.scale(
        weight, DEFAULTS
    )
    for update in (Update.GRADIENT, Update.ORTHOGONAL, Update.NORMALIZED):
        with raises_config_error("_target_", "sweeper.scaling.umup.UMuP"):
            parameterization.scale(weight, DEFAULTS, update)


def test_readout_multipliers() -> None:
    """Erratum E9: backward 1/sqrt(fan-out), as in unit-scaling."""
    scale = UMuP().scale(spec(Role.READOUT, 1000, 256), DEFAULTS)
    assert (scale.init_std, scale.multiplier, scale.backward_multiplier) == (
        1.0,
        1 / 256,
        1 / sqrt(1000),
    )
    printed = UMuP(readout_backward="fan_in").scale(spec(Role.READOUT, 1000, 256), DEFAULTS)
    assert printed == replace(scale, backward_multiplier=1 / sqrt(256))


@given(st.sampled_from(list(Role)), st.integers(1, 512), st.integers(1, 512))
def test_no_base_model_enters(role: Role, fan_in: int, base: int) -> None:
    here = spec(role, 64, fan_in)
    there = spec(role, 64, fan_in, base_fan_in=base, base_fan_out=base, base_depth=base)
    assert UMuP().scale(here, DEFAULTS) == UMuP().scale(there, DEFAULTS)


@given(st.integers(1, 4), st.integers(1, 3), ALPHA, ALPHA)
def test_alpha_residual_is_the_branches_share(
    layers: int, attentions: int, residual: float, ratio: float
) -> None:
    """Erratum E5: alpha_residual^2 is the mean of attention's and FFN's variance over the first."""
    per_layer, stream = attentions + 1, 1.0
    sums = {"attention": 0.0, "ffn": 0.0}
    for branch in range(1, layers * per_layer + 1):
        tau = residual_tau(branch, layers * per_layer, residual, ratio, attentions)
        sums["attention" if branch % per_layer else "ffn"] += tau * stream
        stream += tau * stream
    assert sum(sums.values()) / 2 == pytest.approx(residual**2)
    assert sums["attention"] / sums["ffn"] == pytest.approx(ratio**2)
