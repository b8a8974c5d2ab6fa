"""Sizes that cannot be built are refused by name, and published sizes have the papers' counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.own import made
from tests.refusals import raises_config_error

REFUSED: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "llama": [
        ("width", {"width": 20}),
        ("width", {"width": 0}),
        ("depth", {"depth": 0}),
        ("head_size", {"head_size": 3, "width": 9}),
        ("head_size", {"head_size": 0}),
        ("ffn_ratio", {"ffn_ratio": 2.7}),
        ("ffn_ratio", {"ffn_ratio": -1.0}),
    ],
    "moe": [
        ("width", {"width": 20}),
        ("head_size", {"head_size": 3}),
        ("experts", {"experts": 0}),
        ("top_k", {"top_k": 5}),
        ("granularity", {"granularity": 3}),
        ("shared", {"shared": -1}),
        ("balance", {"balance": 2.0}),
        ("ffn_ratio", {"ffn_ratio": 0.3}),
    ],
    "vit": [
        ("width", {"width": 20}),
        ("depth", {"depth": 0}),
        ("patch_size", {"patch_size": 3}),
        ("patch_size", {"patch_size": 0}),
        ("ffn_ratio", {"ffn_ratio": 0}),
        ("input_shape", {"input_shape": (64,)}),
    ],
    "mlp": [("width", {"width": 0}), ("depth", {"depth": 0})],
    "encoder_decoder": [
        ("width", {"width": 20}),
        ("depth", {"depth": 0}),
        ("ffn_ratio", {"ffn_ratio": 0}),
    ],
}


@pytest.mark.parametrize(
    ("kind", "key", "more"), [(kind, *row) for kind, rows in REFUSED.items() for row in rows]
)
def test_sizes_that_cannot_be_built_are_refused(kind: str, key: str, more: dict[str, Any]) -> None:
    with raises_config_error(key):
        made(kind, **more)


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "vit": (
        {
            "width": 768,
            "classes": 1000,
            "input_shape": (3, 224, 224),
            "patch_size": 16,
            "head_bias": True,
        },
        768 * 768 + 196 * 768 + 768**2 * 12 * 12 + 768 * 1000 + 1000,
    ),
    "encoder_decoder": (
        {"width": 1024, "classes": 50265, "source_len": 514, "target_len": 514},
        50265 * 1024 + 2 * 514 * 1024 + 1024**2 * (4 + 2 * 4 + 4 + 4 + 2 * 4) * 12,
    ),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_papers_models_have_as_many_parameters(kind: str) -> None:
    """86 and 405 million."""
    sizes, count = PUBLISHED[kind]
    with torch.device("meta"):
        model = made(kind, depth=12, head_size=64, **sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
