"""The row of an embedding table that stands for padding: it is 0, and no lookup trains it."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def padding_rows(model: nn.Module) -> dict[str, int]:
    """By the names of embedding tables, the row of their padding."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    rows = {id(m.weight): m.padding_idx for m in tables if m.padding_idx is not None}
    return {name: rows[id(p)] for name, p in model.named_parameters() if id(p) in rows}


def hold_padding(model: nn.Module) -> None:
    """Have lookups of the padding give its row no gradient under `vmap` either.

    torch's map joins the tables of all trials into one, of which the number of the padding is
    the first trial's row alone.
    """
    for module in model.modules():
        if type(module).forward is nn.Embedding.forward:
            table = cast(nn.Embedding, module)
            if (padding := table.padding_idx) is not None:
                table.forward = partial(_looked_up, table, padding)  # type: ignore[method-assign]


def _looked_up(table: nn.Embedding, padding: int, tokens: Tensor) -> Tensor:
    """What `nn.Embedding` computes, with the same gradients."""
    rows = F.embedding(
        tokens,
        table.weight,
        None,
        table.max_norm,
        table.norm_type,
        table.scale_grad_by_freq,
        table.sparse,
    )
    return torch.where(tokens.eq(padding).unsqueeze(-1), rows.detach(), rows)
