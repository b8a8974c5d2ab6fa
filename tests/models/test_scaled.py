"""Scaled blocks against unit-scaling's operations, forwards and backwards, and under vmap."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
import unit_scaling.functional as U
from torch import Tensor, nn

from sweeper.models.scaled import (
    Attention,
    CrossEntropy,
    Embedding,
    GatedSiLU,
    Linear,
    Residual,
    RMSNorm,
    scale_gradient,
)
from sweeper.scaling.umup import attention_scale, gated_silu_scale
from tests.refusals import raises_config_error


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def fill(module: nn.Module, **values: float) -> None:
    module.double()
    for name, value in values.items():
        module.get_buffer(name).fill_(value)


def assert_same(actual: Tensor, oracle: Tensor, inputs: list[tuple[Tensor, Tensor]]) -> None:
    """Same output, and same gradient of every (actual, oracle) pair of inputs."""
    torch.testing.assert_close(actual, oracle)
    upstream = torch.randn(actual.shape, generator=torch.Generator().manual_seed(9)).double()
    gradients = torch.autograd.grad(actual, [a for a, _ in inputs], upstream)
    expected = torch.autograd.grad(oracle, [b for _, b in inputs], upstream)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b)


def twin(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    value = draw(*shape, seed=seed)
    return value, value.detach().clone().requires_grad_()


@pytest.mark.parametrize(
    ("readout", "n_in", "n_out"),
    [(False, 8, 8), (False, 8, 24), (False, 32, 8), (True, 8, 20), (True, 32, 20)],
)
def test_linear(readout: bool, n_in: int, n_out: int) -> None:
    layer = Linear(n_in, n_out, unit=True, readout=readout)
    fill(layer, multiplier=1 / n_in if readout else n_in**-0.5)
    if readout:
        fill(layer, backward_multiplier=n_out**-0.5)
    (w, w2), (x, x2) = twin(n_out, n_in), twin(3, 5, n_in)
    layer.weight = nn.Parameter(w)
    oracle = U.linear_readout if readout else U.linear
    assert_same(layer(x), oracle(x2, w2, None), [(x, x2), (layer.weight, w2)])


def test_embedding() -> None:
    layer, tokens = Embedding(20, 8, unit=True), torch.tensor([[1, 2, 3], [4, 5, 1]])
    fill(layer)
    w, w2 = twin(20, 8)
    layer.weight = nn.Parameter(w)
    assert_same(layer(tokens), U.embedding(tokens, w2), [(layer.weight, w2)])


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(alpha: float, causal: bool) -> None:
    s, d = 12, 8
    core = Attention(d, s, causal=causal, unit=True)
    fill(core, logit=alpha / d, output=attention_scale(s, d, alpha, causal=causal))
    pairs = [twin(2, 3, s, d, seed=i) for i in range(3)]
    inputs, copies = ([pair[i] for pair in pairs] for i in (0, 1))
    oracle = U.scaled_dot_product_attention(*copies, is_causal=causal, mult=alpha)
    assert_same(core(*inputs), oracle, pairs)


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_gated_silu(alpha: float) -> None:
    block = GatedSiLU(unit=True)
    fill(block, alpha=alpha, output=gated_silu_scale(alpha))
    (x, x2), (g, g2) = twin(4, 6, seed=1), twin(4, 6, seed=2)
    assert_same(block(x, g), U.silu_glu(x2, g2, mult=alpha), [(x, x2), (g, g2)])


@pytest.mark.parametrize("tau", [0.1, 1.0, 3.0])
def test_residual(tau: float) -> None:
    block = Residual(1, 2, 2, unit=True)
    fill(block, branch=tau / sqrt(1 + tau**2), skip=1 / sqrt(1 + tau**2))
    x, x2 = twin(4, 6)
    actual = block.add(torch.tanh(block.split(x)), x)
    assert_same(actual, U.residual_apply(torch.tanh, x2, tau), [(x, x2)])


def test_gain_of_a_norm() -> None:
    layer = RMSNorm(8, gain=True, unit=True).double()
    (g, g2), (x, x2) = twin(8), twin(3, 5, 8)
    layer.gain = nn.Parameter(g)
    oracle = U.rms_norm(x2, (8,), g2, eps=1e-5)
    assert_same(layer(x), oracle, [(x, x2), (layer.gain, g2)])


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_cross_entropy(alpha: float) -> None:
    block, targets = CrossEntropy(10, unit=True), torch.tensor([[0, 3], [9, 1]])
    fill(block, logit=alpha)
    x, x2 = twin(2, 2, 10)
    oracle = U.cross_entropy(x2.flatten(0, 1), targets.flatten(), mult=alpha)
    actual = block(x, targets)
    torch.testing.assert_close(actual, oracle)
    torch.testing.assert_close(
        *(torch.autograd.grad(y, z)[0] for y, z in ((actual, x), (oracle, x2)))
    )


def test_smoothed_targets_are_torch_s_in_training_alone() -> None:
    (x, x2), targets = twin(4, 10), torch.tensor([0, 3, 9, 1])
    block = CrossEntropy(10, smoothing=0.1).double()
    assert_same(block(x, targets), F.cross_entropy(x2, targets, label_smoothing=0.1), [(x, x2)])
    torch.testing.assert_close(block.eval()(x, targets), F.cross_entropy(x, targets))
    unit = CrossEntropy(10, unit=True, smoothing=0.1)
    x = torch.zeros(4, 10, requires_grad=True)
    (gradient,) = torch.autograd.grad(unit(x, targets), x)
    assert float(gradient.pow(2).mean()) == pytest.approx(1)  # as unit scaling has it


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_that_leaves_no_target_is_refused(smoothing: float) -> None:
    with raises_config_error("label_smoothing"):
        CrossEntropy(10, smoothing=smoothing)


def test_scale_gradient_is_exact_going_forward() -> None:
    x = draw(50)
    y = scale_gradient(x, torch.tensor(1e-7))
    assert torch.equal(x, y)
    gradient = torch.autograd.grad(y.sum(), x)[0]
    torch.testing.assert_close(gradient, torch.full_like(x, 1e-7), rtol=1e-6, atol=0)
