"""Values that a module gives its own parameters, and which of them mean something.

A scheme draws weights from a centred normal distribution of its own scale. That is right in the
place of any other centred random draw, and wrong in the place of a value that the architecture
chose: a small layer scale, a zero gate, the logarithms of Mamba's decay rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

MIN_DRAWS = 16
"""Fewer random values than these do not show their distribution: they count as drawn."""
MAX_OFFSET = 5.0
"""A mean so many standard errors from 0 is no centred draw's."""
MAX_KURTOSIS = 4.5
"""A normal distribution has 3, a uniform one 1.8."""


class _UnsetAsNan(TorchFunctionMode):
    """Memory that is allocated and never written holds NaN, so that it shows."""

    ALLOCATIONS = (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Fill what `func` allocates."""
        out = func(*args, **(kwargs or {}))
        if func in self.ALLOCATIONS and (out.is_floating_point() or out.is_complex()):
            out.fill_(torch.nan)
        return out


def own_values(build: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """Every parameter as the model's own code sets it, by name; NaN where it is left unset.

    The model is built on the CPU. Its random numbers follow from `seed`, and the generators of
    the process stay as they are.
    """
    with torch.random.fork_rng(devices=[]), _UnsetAsNan(), torch.device("cpu"):
        torch.manual_seed(seed)
        model = build()
    return {name: value.detach() for name, value in model.named_parameters()}


def special_parameters(build: Callable[[], nn.Module], inits: Mapping[str, str]) -> set[str]:
    """Names of the parameters that must keep the values which the model's own code gives them.

    `inits` says by name how a scheme would have them start (see `ParamSpec`). Kept are values that
    no random draw made, unless a scheme starts with the same, and draws that are not centred.
    """
    first, second = (own_values(build, seed) for seed in (0, 1))
    return {
        name
        for name, init in inits.items()
        if name in first and _is_special(first[name], second[name], init)
    }


def _is_special(value: Tensor, other: Tensor, init: str) -> bool:
    if not value.is_floating_point():
        return True  # complex numbers: no scheme draws them
    if bool(value.isnan().any()) or value.numel() == 0:
        return False
    if torch.equal(value, other):
        constant = {"ones": 1.0, "zeros": 0.0}.get(init)
        return constant is None or not bool(torch.equal(value, torch.full_like(value, constant)))
    return value.numel() >= MIN_DRAWS and not _is_centred(value.double())


def _is_centred(values: Tensor) -> bool:
    """Whether `values` look like draws from a normal or a uniform distribution around 0."""
    std = float(values.std())
    if abs(float(values.mean())) > MAX_OFFSET * std / values.numel() ** 0.5:
        return False
    kurtosis = float((values / std).pow(4).mean())
    # The estimate scatters by (24 / n)^1/2 around a normal distribution's 3.
    return bool(kurtosis < MAX_KURTOSIS + 5 * (24 / values.numel()) ** 0.5)
