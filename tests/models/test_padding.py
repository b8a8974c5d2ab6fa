"""A padding's row gets no gradient, mapped over trials or not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sweeper.models.initial_values import hold_padding, padding_rows

TOKENS = torch.tensor([[0, 2, 1, 2], [0, 3, 2, 2], [2, 0, 0, 1]])
"""By trial."""


def gradients(model: nn.Module, tables: Tensor, tokens: Tensor) -> Tensor:
    """Of every trial's output, by its table [K, rows, width]."""

    def output(table: Tensor, tokens: Tensor) -> Tensor:
        return functional_call(model, {"0.weight": table}, (tokens,)).square().sum()  # type: ignore[no-any-return]

    leaf = tables.clone().requires_grad_()
    return torch.autograd.grad(vmap(output)(leaf, tokens).sum(), leaf)[0]


def test_the_row_of_the_padding_gets_no_gradient_in_any_trial() -> None:
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=2))
    assert padding_rows(model) == {"0.weight": 2}
    tables = torch.randn(3, 4, 3)
    alone = torch.cat([gradients(model, tables[k : k + 1], TOKENS[k : k + 1]) for k in range(3)])
    hold_padding(model)
    assert torch.equal(gradients(model, tables, TOKENS), alone)
    assert not alone[:, 2].any() and alone[:, 0].all()


def test_tables_without_padding_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Embedding(4, 3))
    hold_padding(model)
    assert padding_rows(model) == {} and "forward" not in vars(model[0])
