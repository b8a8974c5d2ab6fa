"""Which positions a masked model hides."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from sweeper.models.hf import masked_positions
from tests.models.hf_families import CLASSES, batch, made

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


@pytest.mark.parametrize(("length", "hidden"), [(1, 1), (12, 2), (100, 15), (128, 19)])
def test_fifteen_percent_of_each_sequence_are_hidden(length: int, hidden: int) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (64, length))
    found = masked_positions(tokens)
    assert torch.equal(found.sum(-1), torch.full((64,), hidden))
    assert torch.equal(found[7:8], masked_positions(tokens[7:8]))
    assert torch.equal(vmap(masked_positions)(tokens.view(8, 8, -1)).flatten(0, 1), found)


def test_every_position_is_hidden_as_often() -> None:
    """Over 4000 sequences that differ in one token: 15 % at each of 20 places, +-5 sigma."""
    tokens = torch.arange(4000)[:, None].expand(-1, 20).clone()
    tokens[:, 1:] = 7
    share = masked_positions(tokens).double().mean(0)
    assert (share - 0.15).abs().max() < 5 * math.sqrt(0.15 * 0.85 / 4000)


def test_a_hidden_token_is_not_seen() -> None:
    """The model is shown the same for two sequences that differ in a hidden token alone."""
    seen: list[Tensor] = []
    model = made("BertForMaskedLM")
    model.bert.embeddings.word_embeddings.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, out: seen.append(args[0])
    )
    x, y = batch("BertForMaskedLM")
    model(x, y)
    hidden = masked_positions(x)
    assert (seen[0][hidden] == CLASSES).all() and torch.equal(seen[0][~hidden], x[~hidden])
