"""Sizes that cannot be built are refused by name, and published sizes have the papers' counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.own import made
from tests.refusals import raises_config_error

REFUSED: list[tuple[str, dict[str, Any]]] = [
    *[("llama", {"width": size}) for size in (20, 0)],
    *[("llama", {"head_size": size, "width": 9}) for size in (3, 0)],
    *[("llama", {"ffn_ratio": ratio}) for ratio in (2.7, -1.0)],
    *[("moe", {"width": 20}), ("moe", {"head_size": 3}), ("moe", {"experts": 0})],
    *[("moe", {"top_k": 5}), ("moe", {"granularity": 3}), ("moe", {"shared": -1})],
    *[("moe", {"balance": 2.0}), ("moe", {"ffn_ratio": 0.3})],
    *[("vit", {"width": 20}), ("vit", {"ffn_ratio": 0}), ("vit", {"input_shape": (64,)})],
    *[("vit", {"patch_size": size}) for size in (3, 0)],
    *[("encoder_decoder", {"width": 20}), ("encoder_decoder", {"ffn_ratio": 0})],
    *[(kind, {"depth": 0}) for kind in ("llama", "vit", "mlp", "encoder_decoder")],
    ("mlp", {"width": 0}),
]


@pytest.mark.parametrize(("kind", "more"), REFUSED)
def test_sizes_that_cannot_be_built_are_refused(kind: str, more: dict[str, Any]) -> None:
    with raises_config_error(next(iter(more))):
        made(kind, **more)


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "vit": (
        {"width": 768, "classes": 1000, "input_shape": (3, 224, 224)}
        | {"patch_size": 16, "head_bias": True},
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
