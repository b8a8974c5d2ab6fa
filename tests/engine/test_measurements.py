from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sweeper.engine.measurements import (
    MEASUREMENTS,
    RANGES,
    OperandScale,
    OperandSums,
    OperandTable,
    OutOfRange,
    operand_scales,
    recording,
)
from sweeper.launch.job import Control, Leave
from sweeper.models.scaled import Attention
from tests.engine.tiny_trials import tokens, trial


def rms(x: torch.Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def test_fractions_count_what_the_cast_loses() -> None:
    """The ranges are those of OCP 8-bit floating point, table 1."""
    assert RANGES == {"e4m3": (2.0**-9, 448.0), "e5m2": (2.0**-16, 57344.0)}
    sums = OperandSums()
    # Half of the least number is a tie and goes to 0; a bit above it is kept.
    sums.add(torch.tensor([0.0, 2.0**-10, 1.1 * 2.0**-10, 448.0, 449.0, -1e3, 1.0, 1e-30]))
    sums.add(torch.tensor([2.0**-17, -(2.0**-16), 6e4, torch.inf]))
    assert sums.out_of_range("e4m3") == OutOfRange(underflow=4 / 12, overflow=4 / 12)
    assert sums.out_of_range("e5m2") == OutOfRange(underflow=2 / 12, overflow=2 / 12)


def operand_rms(model: nn.Module, *args: torch.Tensor) -> dict[tuple[str, str], float]:
    """RMS of all operands of one pass, the loss being the sum of squares of the output."""
    sums: OperandTable = {}
    with recording(model, sums):
        model(*args).square().sum().backward()
    return {key: (entry.squares / entry.count) ** 0.5 for key, entry in sums.items()}


def test_plain_linear_layers_of_anybody_s_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    x = torch.randn(4, 5)
    h = model[0](x)
    y = model[2](h.tanh())
    gradient = 2 * y
    inner = (gradient @ model[2].weight) * (1 - h.tanh() ** 2)
    assert operand_rms(model, x) == pytest.approx(
        {
            ("0", "input"): rms(x),
            ("0", "weight"): rms(model[0].weight),
            ("0", "gradient"): rms(inner),
            ("2", "input"): rms(h.tanh()),
            ("2", "weight"): rms(model[2].weight),
            ("2", "gradient"): rms(gradient),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_attention_s_two_products(causal: bool, unit: bool) -> None:
    """Against autograd through an attention that is written out."""
    torch.manual_seed(0)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = Attention(4, 6, causal=causal, unit=unit)
            self.core.logit.fill_(0.7)

        def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.core(*qkv)
            return out

    q, k, v = (torch.randn(2, 3, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    measured = operand_rms(Wrapped().double(), q, k, v)
    logits = (0.7 * q) @ k.mT
    mask = torch.ones(6, 6, dtype=torch.bool).tril() if causal else torch.ones(6, 6).bool()
    weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    out = weights @ v
    to_out = 2 * out
    (to_logits,) = torch.autograd.grad(out, logits, to_out)
    assert torch.allclose(
        out, F.scaled_dot_product_attention(0.7 * q, k, v, is_causal=causal, scale=1.0)
    )
    assert measured == pytest.approx(
        {
            ("core.logits", "input"): rms(0.7 * q),
            ("core.logits", "weight"): rms(k),
            ("core.logits", "gradient"): rms(to_logits),
            ("core.values", "input"): rms(weights),
            ("core.values", "weight"): rms(v),
            ("core.values", "gradient"): rms(to_out),
        },
        rel=1e-6,
    )


def by_key(scales: list[OperandScale], step: int) -> dict[tuple[str, str], OperandScale]:
    return {(scale.product, scale.operand): scale for scale in scales if scale.step == step}


def test_the_end_is_that_of_the_training() -> None:
    """Steps of no length change no weight."""
    moving, still = (operand_scales(trial("mup", eta=eta), tokens()) for eta in (-6.0, -60.0))
    assert {scale.step for scale in moving} == {0, 8}
    assert len(by_key(moving, 0)) == 3 * (2 * 6 + 1), "operands of two layers, and of the head"
    key = ("layers.0.ffn.down", "weight")
    assert by_key(still, 0)[key].rms == pytest.approx(by_key(still, 8)[key].rms, rel=1e-2)
    assert by_key(moving, 0)[key].rms != pytest.approx(by_key(moving, 8)[key].rms, rel=1e-3)
    assert by_key(moving, 0) == by_key(still, 0)


# Kernels are of one batch at initialization: no step at which to ask.
@pytest.mark.parametrize("name", sorted(MEASUREMENTS.keys() - {"kernels"}))
def test_a_measurement_asks_at_every_step_whether_to_leave(name: str) -> None:
    asked: list[int] = []

    def should_leave() -> bool:
        asked.append(1)
        return len(asked) == 3

    measured = trial()
    with pytest.raises(Leave):
        MEASUREMENTS[name](measured, tokens(), "cpu", Control(should_leave=should_leave))
    assert len(asked) == 3
