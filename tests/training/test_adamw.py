"""AdamW against torch's own, trial by trial."""

from __future__ import annotations

from math import atan2, pi, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.errors import ConfigError
from sweeper.training.adamw import AdamW
from sweeper.training.optimizer import Factors


def shaped(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, *[1] * (like.dim() - 1))


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3),
    rates=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=4),
    decay=st.sampled_from([0.0, 0.1]),
    betas=st.tuples(st.floats(0.0, 0.95), st.floats(0.5, 0.999)),
    eps=st.sampled_from([1e-8, 1e-3]),
)
@settings(max_examples=40, deadline=None)
def test_equals_torch(
    shapes: list[list[int]],
    rates: list[float],
    decay: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """torch couples the decay to the learning rate, so it is given decay / lr."""
    torch.manual_seed(0)
    trials = len(rates)
    params = [torch.randn(trials, *shape, dtype=torch.float64) for shape in shapes]
    theirs = [[p[k].clone().requires_grad_() for p in params] for k in range(trials)]
    oracles = [
        torch.optim.AdamW(own, lr=lr, betas=betas, eps=eps, weight_decay=decay / lr)
        for own, lr in zip(theirs, rates, strict=True)
    ]
    mine = AdamW(beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=decay)
    factors = Factors(
        lr=[shaped(rates, p) for p in params],
        eps=[shaped([eps] * trials, p) for p in params],
        weight_decay=[shaped([decay] * trials, p) for p in params],
    )
    state = mine.init(params)
    for _ in range(4):
        grads = [torch.randn_like(p) for p in params]
        mine.update(params, grads, state, factors, 1.0)
        for k, oracle in enumerate(oracles):
            for own, grad in zip(theirs[k], grads, strict=True):
                own.grad = grad[k].clone()
            oracle.step()
    for i, p in enumerate(params):
        for k in range(trials):
            torch.testing.assert_close(p[k], theirs[k][i].detach(), rtol=1e-9, atol=1e-12)


def test_atan2_equals_its_definition_number_by_number() -> None:
    """Plain Python on every entry: 4/pi atan2(m, sqrt v) of bias-corrected moments, no eps."""
    torch.manual_seed(0)
    params = [torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 2, 2, dtype=torch.float64)]
    rates, decay = [0.5, 0.03], 0.1
    plain = [[[x, 0.0, 0.0] for x in p.flatten().tolist()] for p in params]
    factors = Factors(
        lr=[shaped(rates, p) for p in params],
        eps=[shaped([1e9, 1e9], p) for p in params],
        weight_decay=[shaped([decay, decay], p) for p in params],
    )
    mine = AdamW(beta1=0.8, beta2=0.9, atan2=True)
    state = mine.init(params)
    for step in range(1, 6):
        grads = [torch.randn_like(p) for p in params]
        grads[0][0, 0] = 0.0
        mine.update(params, grads, state, factors, 0.7)
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
    """Erratum E3: at m = sqrt(v) atan2 is pi/4, which the factor makes 1."""
    params = [torch.zeros(1, 2, dtype=torch.float64)]
    optimizer = AdamW(atan2=True, weight_decay=0.0)
    factors = Factors(
        lr=[shaped([0.5], params[0])],
        eps=[shaped([1.0], params[0])],
        weight_decay=[shaped([0.0], params[0])],
    )
    grads = [torch.tensor([[3e-60, -2e60]], dtype=torch.float64)]
    optimizer.update(params, grads, optimizer.init(params), factors, 1.0)
    torch.testing.assert_close(params[0], torch.tensor([[-0.5, 0.5]], dtype=torch.float64))


def test_decay_is_independent_of_the_learning_rate_and_follows_the_schedule() -> None:
    params = [torch.ones(2, 3, dtype=torch.float64)]
    grads = [torch.zeros_like(params[0])]
    optimizer = AdamW()
    factors = Factors(
        lr=[shaped([1.0, 100.0], params[0])],
        eps=[shaped([1e-8, 1e-8], params[0])],
        weight_decay=[shaped([0.1, 0.1], params[0])],
    )
    optimizer.update(params, grads, optimizer.init(params), factors, 0.5)
    torch.testing.assert_close(params[0], torch.full_like(params[0], 0.95))


def test_the_first_step_is_the_learning_rate() -> None:
    params = [torch.zeros(1, 2, dtype=torch.float64)]
    optimizer = AdamW(weight_decay=0.0)
    factors = Factors(
        lr=[shaped([0.5], params[0])],
        eps=[shaped([1e-12], params[0])],
        weight_decay=[shaped([0.0], params[0])],
    )
    grads = [torch.tensor([[3.0, -sqrt(2)]], dtype=torch.float64)]
    optimizer.update(params, grads, optimizer.init(params), factors, 1.0)
    torch.testing.assert_close(params[0], torch.tensor([[-0.5, 0.5]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("key", "value"),
    [("beta1", 1.0), ("beta2", -0.1), ("eps", 0.0), ("weight_decay", -1.0), ("weight_decay", 1.0)],
)
def test_impossible_values_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        AdamW(**{key: value})
    assert caught.value.key == key
