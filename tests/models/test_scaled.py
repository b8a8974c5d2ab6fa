"""Scaled blocks against unit-scaling's operations, forwards and backwards, and under vmap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
import unit_scaling.functional as U
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sweeper.errors import ConfigError
from sweeper.models.scaled import (
    Attention,
    CrossEntropy,
    Embedding,
    GatedSiLU,
    Linear,
    Residual,
    RMSNorm,
    ScaledModule,
    scale_forward,
    scale_gradient,
)
from sweeper.scaling.umup import attention_scale, gated_silu_scale


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


@pytest.mark.parametrize(("n_in", "n_out"), [(8, 8), (8, 24), (32, 8)])
def test_hidden_linear(n_in: int, n_out: int) -> None:
    layer = Linear(n_in, n_out, unit=True)
    fill(layer, multiplier=n_in**-0.5)
    (w, w2), (x, x2) = twin(n_out, n_in), twin(3, 5, n_in)
    layer.weight = nn.Parameter(w)
    assert_same(layer(x), U.linear(x2, w2, None), [(x, x2), (layer.weight, w2)])


@pytest.mark.parametrize(("n_in", "n_out"), [(8, 20), (32, 20)])
def test_readout_linear(n_in: int, n_out: int) -> None:
    layer = Linear(n_in, n_out, unit=True, readout=True)
    fill(layer, multiplier=1 / n_in, backward_multiplier=n_out**-0.5)
    (w, w2), (x, x2) = twin(n_out, n_in), twin(3, 5, n_in)
    layer.weight = nn.Parameter(w)
    assert_same(layer(x), U.linear_readout(x2, w2, None), [(x, x2), (layer.weight, w2)])


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


def test_clipped_runs_with_gains_are_the_library_s() -> None:
    """The norm that clips is one of all gradients: a gain's must have the library's size."""
    tokens, targets = torch.randint(20, (2, 4, 6), generator=torch.Generator().manual_seed(3))
    embedding, head = Embedding(20, 8, unit=True), Linear(8, 20, unit=True, readout=True)
    norm, loss = RMSNorm(8, gain=True, unit=True).double(), CrossEntropy(20, unit=True)
    fill(embedding)
    fill(head, multiplier=1 / 8, backward_multiplier=20**-0.5)
    fill(loss)
    (e, e2), (w, w2), (g, g2) = twin(20, 8), twin(20, 8, seed=1), twin(8)
    embedding.weight, head.weight, norm.gain = (nn.Parameter(one) for one in (e, w, g))

    def ours() -> Tensor:
        return loss(head(norm(embedding(tokens))), targets)

    def theirs() -> Tensor:
        x = U.rms_norm(U.embedding(tokens, e2), (8,), g2, eps=1e-5)
        logits = U.linear_readout(x, w2, None)
        return U.cross_entropy(logits.flatten(0, 1), targets.flatten())

    mine: list[Tensor] = [embedding.weight, head.weight, norm.gain]
    for one, parameters in ((ours, mine), (theirs, [e2, w2, g2])):
        optimizer = torch.optim.AdamW(parameters, lr=0.1, eps=1e-3)  # so that sizes matter
        for _ in range(6):
            optimizer.zero_grad()
            one().backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
    for a, b in zip(mine, (e2, w2, g2), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


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


OFTEN = ((3, 0.1, True),)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    ("trials", "smoothing", "unit"),
    [
        pytest.param(*case, marks=() if case in OFTEN else pytest.mark.long)
        for case in product((None, 3), (0.0, 0.1), (False, True))
    ],
)
def test_the_compiled_cross_entropy_is_the_plain_one(
    trials: int | None, smoothing: float, unit: bool
) -> None:
    """Compiled it is written in another way, alone and batched."""
    block = CrossEntropy(10, unit=unit, smoothing=smoothing)
    stack = () if trials is None else (trials,)
    fill(block, logit=1.7)
    targets = torch.randint(10, (*stack, 2, 7), generator=torch.Generator().manual_seed(0))
    (x, x2) = twin(*stack, 2, 7, 10)
    loss = block if trials is None else vmap(block)
    actual, plain = torch.compile(loss, backend="aot_eager")(x, targets), loss(x2, targets)
    torch.testing.assert_close(actual, plain, rtol=1e-12, atol=1e-12)
    (gradient,), (expected,) = (
        torch.autograd.grad(y.sum(), z) for y, z in ((actual, x), (plain, x2))
    )
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


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
    with pytest.raises(ConfigError) as caught:
        CrossEntropy(10, smoothing=smoothing)
    assert caught.value.key == "label_smoothing"


def test_without_unit_the_blocks_are_the_ordinary_ones() -> None:
    (x, x2), (w, w2) = twin(3, 8), twin(5, 8)
    layer = Linear(8, 5).double()
    layer.weight = nn.Parameter(w)
    assert_same(layer(x), x2 @ w2.T, [(x, x2), (layer.weight, w2)])
    loss, targets = CrossEntropy(8).double(), torch.tensor([1, 2, 3])
    torch.testing.assert_close(loss(x, targets), nn.functional.cross_entropy(x, targets))
    q, k, v = (draw(1, 2, 6, 4, seed=i) for i in range(3))
    plain = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    torch.testing.assert_close(Attention(4, 6, causal=True).double()(q, k, v), plain)


def test_scale_gradient_is_exact_going_forward() -> None:
    x = draw(50)
    y = scale_gradient(x, torch.tensor(1e-7))
    assert torch.equal(x, y)
    gradient = torch.autograd.grad(y.sum(), x)[0]
    torch.testing.assert_close(gradient, torch.full_like(x, 1e-7), rtol=1e-6, atol=0)


def test_scale_forward_passes_the_gradient() -> None:
    x = draw(50)
    y = scale_forward(x, torch.tensor(3e-5, dtype=torch.float64))
    assert torch.equal(y, 3e-5 * x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones_like(x))


class Everything(nn.Module):
    """A net that uses every scaled operation once."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding(16, 8, unit=True)
        self.qkv = Linear(8, 24, unit=True)
        self.core = Attention(4, 6, causal=True, unit=True)
        self.residual = Residual(1, 2, 2, unit=True)
        self.act = GatedSiLU(unit=True)
        self.head = Linear(8, 16, unit=True, readout=True)
        self.loss = CrossEntropy(16, unit=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = (
            t.unflatten(-1, (2, 4)).transpose(-3, -2)
            for t in self.qkv(self.residual.split(x)).chunk(3, -1)
        )
        y = self.core(q, k, v).transpose(-3, -2).flatten(-2)
        x = self.residual.add(self.act(y, y), x)
        return self.loss(self.head(x), tokens)  # type: ignore[no-any-return]


def stacked(trials: int) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor], Tensor]:
    torch.manual_seed(0)
    model = Everything().double()
    params = {n: torch.randn(trials, *p.shape).double() for n, p in model.named_parameters()}
    buffers = {n: torch.rand(trials).double() + 0.5 for n, _ in model.named_buffers()}
    return model, params, buffers, torch.randint(16, (trials, 2, 6))


def gradients(
    function: Callable[..., Tensor], params: dict[str, Tensor], *rest: object
) -> list[Tensor]:
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    return list(torch.autograd.grad(function(leaves, *rest).sum(), list(leaves.values())))


@pytest.mark.filterwarnings("ignore:.*batching rule for aten")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
def test_batched_gradients_equal_those_alone(compiled: bool) -> None:
    """The trap of custom backward passes under `torch.compile(vmap(...))`: none is lost here."""
    model, params, buffers, tokens = stacked(3)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, {**p, **b}, (x,))  # type: ignore[no-any-return]

    batched = vmap(loss)
    function = torch.compile(batched) if compiled else batched
    together = gradients(function, params, buffers, tokens)
    for i in range(3):
        alone = gradients(
            loss,
            {n: p[i] for n, p in params.items()},
            {n: b[i] for n, b in buffers.items()},
            tokens[i],
        )
        for all_trials, one in zip(together, alone, strict=True):
            # Sums of large terms that cancel are as exact as the largest.
            atol = 1e-12 * float(one.abs().max())
            torch.testing.assert_close(all_trials[i], one, rtol=1e-10, atol=atol)


def test_every_block_names_its_scaled_op() -> None:
    kinds = {
        op.kind
        for name, module in Everything().named_modules()
        if isinstance(module, ScaledModule) and (op := module.scale_op(name))
    }
    assert kinds == {"attention", "gated_silu", "residual", "loss"}
