"""The chunked loss against the plain one: loss and gradients, batched, compiled, in bfloat16."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from sweeper.models import loss
from sweeper.models.fp8 import Formats
from sweeper.models.llama import Llama
from sweeper.models.loss import MIN_CHUNKED_CLASSES, head_loss
from sweeper.models.scaled import CrossEntropy, Linear
from tests.models.gradient_modes import GRADIENT_MODES, UNIT_MODES, Tensors, run, stacked
from tests.specs import specs_between

V, WIDTH, TRIALS = 23, 6, 3


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four tokens of ten, the last one short, from ten classes on."""
    monkeypatch.setattr(loss, "MIN_CHUNKED_CLASSES", 10)
    monkeypatch.setattr(loss, "MIN_TOKENS", 4)
    monkeypatch.setattr(loss, "MAX_LOGITS_CPU", 1)


class Head(nn.Module):
    """A product that gets x's gradient, then head and loss; `plain` in the ordinary way."""

    def __init__(self, *, unit: bool, readout: bool = True, plain: bool = False) -> None:
        super().__init__()
        self.plain = plain
        self.first = Linear(WIDTH, WIDTH)
        self.head = Linear(WIDTH, V, unit=unit, readout=readout)
        self.loss = CrossEntropy(V, unit=unit)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        x = self.first(x)
        if self.plain:
            return self.loss(self.head(x), targets)  # type: ignore[no-any-return]
        return head_loss(self.head, self.loss, x, targets)


def draw(dtype: torch.dtype) -> tuple[Tensors, Tensors, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    params, buffers = stacked(Head(unit=True).to(dtype), TRIALS)
    x = torch.randn(TRIALS, 2, 5, WIDTH, dtype=dtype)
    return params, buffers, (x, torch.randint(V, (TRIALS, 2, 5)))


@pytest.mark.parametrize(("unit", "backend", "batched"), UNIT_MODES)
def test_loss_and_gradients_are_the_plain_ones(unit: bool, backend: str, batched: bool) -> None:
    """With and, of unit scaling, without a backward multiplier of the head."""
    for readout in {True, not unit}:
        params, buffers, inputs = draw(torch.float64)
        plain, chunked = (
            Head(unit=unit, readout=readout, plain=way).double() for way in (True, False)
        )
        buffers = {name: buffers[name] for name, _ in plain.named_buffers() if name in buffers}
        expected = run(plain, params, buffers, inputs, backend="", batched=False)
        results = run(chunked, params, buffers, inputs, backend=backend, batched=batched)
        torch.testing.assert_close(results, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("backend", "batched"), GRADIENT_MODES)
def test_under_autocast(backend: str, batched: bool) -> None:
    """Products in bfloat16, loss and weight gradients in float32: as near as the plain way is."""
    params, buffers, inputs = draw(torch.float32)
    exact = run(Head(unit=True, plain=True), params, buffers, inputs, backend="", batched=False)
    model = Head(unit=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = run(model, params, buffers, inputs, backend=backend, batched=batched)
    assert results[0].dtype == torch.float32
    torch.testing.assert_close(results[0], exact[0], rtol=0.03, atol=0.03)
    for name, gradient in results[1].items():
        error = (gradient - exact[1][name]).norm() / exact[1][name].norm()
        assert gradient.dtype == torch.float32 and 1e-5 < error < 0.03, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_compiled_form_is_torch_s(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits, targets = (3 * torch.randn(40, V)).to(dtype), torch.randint(V, (40,))
    factor = torch.tensor(1.7, dtype=torch.promote_types(dtype, torch.float32))
    leaf = logits.double().requires_grad_()
    exact = nn.functional.cross_entropy(leaf * 1.7, targets, reduction="sum")
    expected = exact.detach(), torch.autograd.grad(exact, leaf)[0] / 1.7
    compiled = torch.compile(loss._written_out, backend="aot_eager")(logits, targets, factor)
    for value, right in zip(compiled, expected, strict=True):
        error = 0.01 if dtype == torch.bfloat16 else 1e-7
        torch.testing.assert_close(value.double(), right, rtol=error, atol=error / 10)


def test_only_part_of_the_trials_dimensions_may_be_mapped() -> None:
    """Weights that all trials share, and a map inside a map."""
    params, _, (x, targets) = draw(torch.float64)
    model = Head(unit=False).double()
    model.load_state_dict({name: value[0] for name, value in params.items()})
    alone = torch.stack([model(a, b) for a, b in zip(x, targets, strict=True)])
    torch.testing.assert_close(torch.vmap(model)(x, targets), alone)
    twice = torch.vmap(torch.vmap(model))(x[None], targets[None])
    torch.testing.assert_close(twice, alone[None])


def test_large_logits_do_not_overflow() -> None:
    model = Head(unit=False)
    nn.init.normal_(model.head.weight, std=1e4), nn.init.eye_(model.first.weight)
    x, targets = torch.randn(10, WIDTH), torch.arange(10)
    model(x, targets).backward()
    assert torch.isfinite(model.head.weight.grad).all()  # type: ignore[arg-type]
    plain = model.loss(model.head(x), targets)
    torch.testing.assert_close(model(x, targets), plain)


def llama(width: int = 8, depth: int = 1, **more: Any) -> Llama:
    sizes = {"width": width, "depth": depth, "classes": MIN_CHUNKED_CLASSES}
    sizes |= {"seq_len": 4, "head_size": 4}
    model = Llama(**(sizes | more))  # type: ignore[arg-type]
    for parameter in model.parameters():
        if not parameter.is_meta:
            nn.init.normal_(parameter, std=0.3)
    return model


def test_the_decoder_takes_it_from_the_threshold_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MIN_CHUNKED_CLASSES", MIN_CHUNKED_CLASSES)
    tokens = torch.randint(200, (2, 4))
    for model, chunks in ((llama(classes=MIN_CHUNKED_CLASSES - 1), 0), (llama(), 2)):
        logits = model(tokens)
        with patch.object(loss, "_losses", wraps=loss._losses) as chunk:
            torch.testing.assert_close(model(tokens, tokens), model.loss(logits, tokens))
        assert logits.shape == (2, 4, model.head.out_features) and chunk.call_count == chunks


def test_a_head_in_fp8_takes_the_plain_way() -> None:
    model, tokens = llama(), torch.randint(200, (2, 4))
    model.head.formats = Formats(gradient="e5m2")
    with patch.object(loss, "_losses", wraps=loss._losses) as chunk:
        model(tokens, tokens)
    assert not chunk.called


def test_the_head_is_still_seen_as_a_readout() -> None:
    tokens = torch.zeros(2, 4, dtype=torch.long, device="meta")
    [*_, head] = specs_between(llama, base=(8, 1), target=(16, 2), inputs=(tokens, tokens))
    assert head.role == "readout"
