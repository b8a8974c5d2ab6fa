"""u-muP in its own words: every activation, weight and gradient has RMS 1 at initialization."""

from __future__ import annotations

import pytest
import torch

from tests.models.own import at, made, rms, scales_at_start

SEQ, CLASSES = 64, 200
CASES = [
    {},
    {"alpha_residual": 0.25},
    {"alpha_residual": 4.0, "alpha_residual_attn_ratio": 2.0},
    {"alpha_ffn_act": 4.0, "alpha_attn": 2.0},
]


def llama_scales(width: int, depth: int, values: dict[str, float]) -> dict[str, float]:
    sizes = {"classes": CLASSES, "seq_len": SEQ, "head_size": 16, "base_depth": depth}
    torch.manual_seed(1)
    x, y = torch.randint(CLASSES, (2, 16, SEQ))
    return scales_at_start(at("llama", **sizes, unit=True), width, depth, (x, y), **values)


@pytest.mark.parametrize("values", CASES, ids=str)
def test_one_layer_has_unit_scale(values: dict[str, float]) -> None:
    """Within the reach of the paper's empirical rules, which hold for independent inputs."""
    for name, value in llama_scales(256, 1, values).items():
        if name == "head":
            assert value == pytest.approx(256**-0.5, rel=0.1)
        elif name.endswith(".weight") or "gradient" not in name:
            assert 0.75 < value < 1.3, name
        else:
            assert 0.3 < value < 2.0, name


def test_depth_changes_no_scale() -> None:
    """Beyond what attention's model leaves out: positions grow alike from layer to layer."""
    for name, value in llama_scales(64, 8, {"alpha_residual": 0.5}).items():
        assert name == "head" or 0.3 < value < 3, name


@pytest.mark.parametrize(("kind", "low", "high"), [("mlp", 0.7, 1.3), ("vit", 0.2, 2.0)])
def test_models_of_arrays_have_unit_scale(kind: str, low: float, high: float) -> None:
    """Activations, and gradients of weights from `low` to `high`: images' tokens depend."""
    torch.manual_seed(1)
    batch = torch.randn(64, 16, 16), torch.randint(10, (64,))
    scales = scales_at_start(at(kind, input_shape=(16, 16), unit=True), 128, 2, batch)
    for name, value in scales.items():
        if name == "head":
            assert value == pytest.approx(128**-0.5, rel=0.25)
        elif name.endswith("weight gradient"):
            assert low < value < high, name
        elif not name.endswith("gradient"):
            assert 0.75 < value < 2.5, name


def test_unit_scale_of_the_head_s_bias() -> None:
    """Its gradient is of order 1 at any batch, and so independent of it."""
    for batch in (16, 256):
        torch.manual_seed(0)
        model = made("vit", width=64, unit=True, head_bias=True)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        torch.nn.init.zeros_(model.head_bias)
        model.head.multiplier.fill_(1 / 64)
        model(torch.randn(batch, 8, 8), torch.randint(10, (batch,))).backward()
        assert 0.4 < rms(model.head_bias.grad) < 2.5
