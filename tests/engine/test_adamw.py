"""AdamW's step by atan2, and what its first steps are."""

from __future__ import annotations

from math import atan2, pi, sqrt

import pytest
import torch
from torch import Tensor

from sweeper.engine.optimizers.first_order import AdamW
from sweeper.engine.optimizers.optimizer import (
    StepInfo,
    UpdateHps,
    scale_distance_from_one,
    unsqueeze_like,
)
from sweeper.errors import ConfigError
from sweeper.scaling.spec import Update


def factors(
    optimizer: AdamW,
    params: list[Tensor],
    rates: list[float],
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> UpdateHps:
    """One learning rate a trial, and the rest alike."""

    def shaped(value: float) -> list[Tensor]:
        return [
            unsqueeze_like(torch.full((len(rates),), value, dtype=torch.float64), p) for p in params
        ]

    settings = optimizer.settings({})
    return UpdateHps(
        kinds=[Update.SIGN] * len(params),
        lr=[unsqueeze_like(torch.tensor(rates, dtype=torch.float64), p) for p in params],
        eps=shaped(eps),
        weight_decay=shaped(weight_decay),
        settings={
            n: torch.full((len(rates),), v, dtype=params[0].dtype) for n, v in settings.items()
        },
    )


def now(step: int, share: float, trials: int) -> StepInfo:
    return StepInfo(
        step=torch.tensor(step), schedule=torch.full((trials,), share, dtype=torch.float64)
    )


def first_step(optimizer: AdamW, params: list[Tensor], grads: list[Tensor], f: UpdateHps) -> None:
    optimizer.update(params, grads, optimizer.init(params, f.kinds), f, now(1, 1.0, len(params[0])))


def test_atan2_equals_its_definition_number_by_number() -> None:
    """Plain Python on every entry: 4/pi atan2(m, sqrt v) of bias-corrected moments, no eps."""
    torch.manual_seed(0)
    params = [torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 2, 2, dtype=torch.float64)]
    rates, decay = [0.5, 0.03], 0.1
    plain = [[[x, 0.0, 0.0] for x in p.flatten().tolist()] for p in params]
    atan2_adam = AdamW(beta1=0.8, beta2=0.9, atan2=True)
    given = factors(atan2_adam, params, rates, eps=1e9, weight_decay=decay)
    state = atan2_adam.init(params, given.kinds)
    for step in range(1, 6):
        grads = [torch.randn_like(p) for p in params]
        grads[0][0, 0] = 0.0
        atan2_adam.update(params, grads, state, given, now(step, 0.7, 2))
        for p, g, entries in zip(params, grads, plain, strict=True):
            for i, (x, entry) in enumerate(zip(g.flatten().tolist(), entries, strict=True)):
                entry[1] = 0.8 * entry[1] + 0.2 * x
                entry[2] = 0.9 * entry[2] + 0.1 * x * x
                m, v = entry[1] / (1 - 0.8**step), entry[2] / (1 - 0.9**step)
                lr = rates[i // (p.numel() // 2)]
                entry[0] *= 1 - 0.7 * decay
                entry[0] -= 0.7 * lr * 4 / pi * atan2(m, sqrt(v))
            expected = torch.tensor([e[0] for e in entries], dtype=torch.float64).view_as(p)
            torch.testing.assert_close(p, expected, rtol=1e-12, atol=1e-13)


def test_atan2_s_first_step_is_the_learning_rate_whatever_the_gradients_scale() -> None:
    """Erratum E3 (docs/papers.md): at m = sqrt(v) atan2 is pi/4, which the factor makes 1."""
    params = [torch.zeros(1, 2, dtype=torch.float64)]
    optimizer = AdamW(atan2=True)
    grads = [torch.tensor([[3e-60, -2e60]], dtype=torch.float64)]
    first_step(optimizer, params, grads, factors(optimizer, params, [0.5], eps=1.0))
    torch.testing.assert_close(params[0], torch.tensor([[-0.5, 0.5]], dtype=torch.float64))


def test_the_first_step_is_the_learning_rate() -> None:
    params = [torch.zeros(1, 2, dtype=torch.float64)]
    grads = [torch.tensor([[3.0, -sqrt(2)]], dtype=torch.float64)]
    first_step(AdamW(), params, grads, factors(AdamW(), params, [0.5], eps=1e-12))
    torch.testing.assert_close(params[0], torch.tensor([[-0.5, 0.5]], dtype=torch.float64))


def test_the_bias_correction_keeps_its_digits_in_float32() -> None:
    """1 - beta2^t at t = 2, beta2 near 1: the power itself has lost the last five of them."""
    params = [torch.zeros(1, 1)]
    optimizer = AdamW(beta2=1 - 2.0**-14)
    given = factors(optimizer, params, [1.0], eps=1e-30)
    state = optimizer.init(params, given.kinds)
    for step in (1, 2):
        optimizer.update(params, [torch.ones(1, 1)], state, given, now(step, 1.0, 1))
        assert float(params[0]) == pytest.approx(-step, rel=1e-6)


@pytest.mark.parametrize(("factor", "beta"), [(1.0, 0.9), (0.5, 0.95), (4.0, 0.6), (32.0, 0.0)])
def test_a_searched_beta_is_a_factor_on_its_distance_from_1(factor: float, beta: float) -> None:
    assert scale_distance_from_one(0.9, factor) == pytest.approx(beta)
    settings = AdamW().settings({"one_minus_beta1": factor})
    assert settings == pytest.approx({"beta1": beta, "beta2": 0.999})


@pytest.mark.parametrize(
    ("key", "value"),
    [("beta1", 1.0), ("beta2", -0.1), ("eps", 0.0), ("weight_decay", -1.0)],
)
def test_impossible_values_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        AdamW(**{key: value})
    assert caught.value.key == key
