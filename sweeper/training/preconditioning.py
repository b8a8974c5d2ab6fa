"""What Shampoo and SOAP share: the two sides' statistics of hidden matrices, AdamW for all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.errors import ConfigError
from sweeper.scaling.spec import ParamSpec, Update
from sweeper.training.hidden_matrices import hidden_kind
from sweeper.training.optimizer import State
from sweeper.training.updates import (
    beside,
    check_ranges,
    empty_state,
    searched_settings,
    update_averages,
)
from sweeper.trial import PlainHps

NORM_ITERATIONS = 8
"""Steps of the power iteration for a largest singular value."""


@dataclass(frozen=True, kw_only=True)
class Preconditioned:
    """What optimizers with statistics of the two sides are set by.

    Preconditioners are renewed every `every` steps; `normalize` divides each update of a matrix by
    its largest singular value (arXiv:2512.05620).
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("one_minus_beta1", "one_minus_beta2")

    beta1: float = 0.9
    beta2: float = 0.95
    every: int = 1
    normalize: bool = False
    eps: float = 1e-8
    weight_decay: float = 2.0**-13

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_ranges(self, "beta1", "beta2")
        if self.every < 1:
            raise ConfigError("every", self.every, "a whole number of steps, at least 1")

    def kind(self, spec: ParamSpec) -> Update:
        """Orthogonal of hidden matrices, like a sign of all else."""
        return hidden_kind(spec)

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """`beta1` and `beta2`."""
        return searched_settings(self, hps)


def as_matrices(values: Tensor) -> Tensor:
    """[K, rows, ...] as matrices [K, rows, columns]: more dimensions are columns, as Muon's."""
    return values.reshape(*values.shape[:2], -1)


def side_states(params: Sequence[Tensor], kinds: Sequence[Update], names: Sequence[str]) -> State:
    """Zero [K, rows, rows] for names with "left", [K, columns, columns] for "right", of matrices.

    What AdamW trains has none.
    """

    def zeros(name: str, param: Tensor) -> Tensor:
        size = as_matrices(param).shape[1 if name.startswith("left") else 2]
        return param.new_zeros(len(param), size, size)

    each = list(zip(params, kinds, strict=True))
    return {
        name: [zeros(name, p) if k is Update.ORTHOGONAL else empty_state(p) for p, k in each]
        for name in names
    }


def update_statistics(left: Tensor, right: Tensor, gradient: Tensor, beta: Tensor) -> None:
    """Running averages of G G^T and G^T G, in place; `gradient` [K, rows, columns], beta [K]."""
    products = [gradient @ gradient.mT, gradient.mT @ gradient]
    update_averages([left, right], products, beta)


def spectrally_normalized(matrices: Tensor) -> Tensor:
    """[K, rows, columns] over its largest singular value; 0 stays 0.

    By power iteration from the row of the Gram matrix with the largest norm, which is never
    orthogonal to the first singular vector unless that has no weight there.
    """
    gram = matrices @ matrices.mT
    lengths = torch.linalg.vector_norm(gram, dim=2, keepdim=True)
    start = lengths.argmax(1, keepdim=True).expand(-1, 1, gram.shape[2])
    vector, tiny = gram.gather(1, start).mT, torch.finfo(gram.dtype).tiny
    for _ in range(NORM_ITERATIONS):
        length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        vector = gram @ (vector / length.clamp(min=tiny))
    sigma = torch.linalg.vector_norm(vector, dim=1, keepdim=True).sqrt()
    normalized: Tensor = matrices / sigma.clamp(min=tiny)
    return normalized


def eigen(statistics: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [K, n], rising, and vectors of `statistics` [K, n, n]; NaN of what is not finite.

    Torch refuses a whole stack for one matrix that is not finite, and its trial is to fail alone.
    """
    finite = statistics.isfinite().all(2).all(1)[:, None, None]
    identity = torch.eye(statistics.shape[1], dtype=statistics.dtype, device=statistics.device)
    values, vectors = torch.linalg.eigh(torch.where(finite, statistics, identity))
    nan = torch.full_like(values[:, :1], torch.nan)
    return torch.where(finite[:, 0], values, nan), torch.where(finite, vectors, nan[:, :, None])


def rounding(values: Tensor) -> Tensor:
    """What eigenvalues `values` [K, n], rising, are known to but for rounding, [K, 1]."""
    return values[:, -1:].clamp(min=0.0) * torch.finfo(values.dtype).eps * values.shape[1]


def corrected(average: Tensor, bias: Tensor) -> Tensor:
    """A running average that began at 0 over its weights' sum, `bias` [K]."""
    return average / beside(bias, average)
