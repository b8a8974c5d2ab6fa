"""Values that a module gives its own parameters, and which of them mean something.

A parameterization draws weights from a centred normal distribution of its own scale. That is right
in the place of any other centred random draw, and wrong in the place of a value that the
architecture chose: a small layer scale, a zero gate, the logarithms of Mamba's decay rates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# The row of an embedding table that stands for padding: it is 0, and no lookup trains it.


def padding_rows(model: nn.Module) -> dict[str, int]:
    """The row of the padding, by the names of embedding tables."""
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


MIN_DRAWS = 16
"""Fewer random values than these do not show their distribution: they count as drawn."""
MAX_OFFSET = 5.0
"""A mean so many standard errors from 0 is no centred draw's."""
MAX_KURTOSIS = 4.5
"""A normal distribution has 3, a uniform one 1.8."""
MAX_SHARE = 1 / 8
"""A value that so many of the entries have was written into them: draws hardly repeat."""
MAX_REPEATS = 4
"""So few equal entries may be anything."""
SAMPLE = 4096
"""The most frequent value is looked for among so many entries."""


class _UnsetAsNan(TorchFunctionMode):
    """Memory that is allocated and never written holds NaN, so that it shows."""

    ALLOCATIONS = (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self.ALLOCATIONS and (out.is_floating_point() or out.is_complex()):
            out.fill_(torch.nan)
        return out


def own_values(build: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """Every parameter as the model's own code sets it, by name; NaN where it is left unset.

    The model is built on the CPU. Its random numbers follow from `seed`, and the generators of
    the process stay as they are.
    """
    return {name: value.detach() for name, value in _built(build, seed).named_parameters()}


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]), _UnsetAsNan(), torch.device("cpu"):
        torch.manual_seed(seed)
        return build()


def special_parameters(build: Callable[[], nn.Module], inits: Mapping[str, str]) -> set[str]:
    """Names of the parameters that must keep the values which the model's own code gives them.

    `inits` says by name how a parameterization would have them start (see `ParamSpec`). Kept are
    values that no random draw made, unless a parameterization starts with the same, and draws that
    are not centred or that one value was written into, beside a padding's row.
    """
    # What two seeds give alike no random draw made.
    models = [_built(build, seed) for seed in (0, 1)]
    rows = padding_rows(models[0])
    first, second = (
        {name: _without_row(value.detach(), rows.get(name)) for name, value in m.named_parameters()}
        for m in models
    )
    return {
        name
        for name, init in inits.items()
        if name in first and _is_special(first[name], second[name], init)
    }


def _without_row(table: Tensor, row: int | None) -> Tensor:
    return table if row is None else torch.cat([table[:row], table[row + 1 :]])


def norm_like(weight: Tensor, gain: Sequence[int]) -> Tensor:
    """The norm of `weight` over the dimensions that a gain of the shape `gain` does not have."""
    over = [dim for dim, size in enumerate(gain) if size == 1] if gain else None
    norm: Tensor = torch.linalg.vector_norm(weight, dim=over, keepdim=bool(gain))
    return norm


def _is_special(value: Tensor, other: Tensor, init: str) -> bool:
    if init == "norm":
        return False  # of whatever the weight is drawn as
    if not value.is_floating_point():
        return True  # complex numbers: no parameterization draws them
    if bool(value.isnan().any()) or value.numel() == 0:
        return False  # left unset: its author counts on somebody drawing it
    if torch.equal(value, other):
        constant = {"ones": 1.0, "zeros": 0.0}.get(init)
        return constant is None or not bool(torch.equal(value, torch.full_like(value, constant)))
    # What is drawn anew is no gain of 1, though gates multiply it (a state that is learned).
    drawn_apart = value.numel() >= MIN_DRAWS and not _is_centred(value.double())
    return init == "ones" or _repeats(value) or drawn_apart


def _repeats(values: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(values.numel(), (SAMPLE,), generator=generator)
    sample = values.flatten()[at] if values.numel() > SAMPLE else values
    distinct, counts = sample.double().unique(return_counts=True)  # type: ignore[no-untyped-call, unused-ignore]
    repeated = int((values == distinct[counts.argmax()]).sum())
    return repeated > MAX_REPEATS and repeated >= MAX_SHARE * values.numel()


def _is_centred(values: Tensor) -> bool:
    std = float(values.std())
    if abs(float(values.mean())) > MAX_OFFSET * std / values.numel() ** 0.5:
        return False
    kurtosis = float((values / std).pow(4).mean())
    # The estimate scatters by (24 / n)^1/2 around a normal distribution's 3.
    return bool(kurtosis < MAX_KURTOSIS + 5 * (24 / values.numel()) ** 0.5)


def normal(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """N(0, 1) values [*shape] in float64 on the CPU, by (seed, name): neighbours change nothing."""
    # A hash and not seed + index: a parameter more or less in the model changes no other's draw.
    word = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(word, "big") >> 1)  # 63 bits
    # On the CPU in float64 whatever trains: the same weights on every device and in every type.
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
