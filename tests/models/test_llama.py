"""The decoder: sizes it refuses, causality, position, and what it costs nothing to change."""

from __future__ import annotations

import pytest
import torch

from sweeper.models.llama import rotary_table, rotate
from tests.models.own import drawn


@pytest.mark.parametrize("unit", [False, True])
def test_no_position_sees_what_follows(unit: bool) -> None:
    """The gradient of one position's logits reaches no later token."""
    model = drawn("llama", unit=unit)
    embedded: list[torch.Tensor] = []
    model.embedding.register_forward_hook(lambda m, i, out: embedded.append(out))
    logits = model(torch.randint(32, (1, 8)))
    gradient = torch.autograd.grad(logits[0, 5].sum(), embedded[0])[0][0]
    assert (gradient[:6].abs().sum(-1) > 0).all()
    assert (gradient[6:] == 0).all()


def test_rotation_keeps_lengths_and_sees_distances_only() -> None:
    cos, sin = rotary_table(16, 8)
    q, k = torch.randn(8).expand(16, 8), torch.randn(8).expand(16, 8)
    turned = rotate(q, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    scores = turned @ rotate(k, cos, sin).T
    torch.testing.assert_close(scores.diagonal(3), scores.diagonal(3)[:1].expand(13))


def test_gains_are_parameters_only_if_asked_for() -> None:
    assert not any(name.endswith("gain") for name, _ in drawn("llama").named_parameters())
    gains = [
        name
        for name, _ in drawn("llama", norm_gain=True).named_parameters()
        if name.endswith("gain")
    ]
    assert len(gains) == 5


def test_shorter_sequences_are_prefixes() -> None:
    model, tokens = drawn("llama"), torch.randint(32, (1, 8))
    torch.testing.assert_close(model(tokens)[:, :4], model(tokens[:, :4]))
