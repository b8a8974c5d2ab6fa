"""What Shampoo and SOAP share: the two sides' statistics of hidden matrices, AdamW for all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from sweeper.engine.optimizers.optimizer import (
    BaseOptimizer,
    MatrixOptimizer,
    Rate,
    State,
    StepInfo,
    UpdateHps,
    adam_for_the_rest,
    beside,
    bias,
    current_lrs,
    empty_state,
    update_averages,
)
from sweeper.records import Bounds
from sweeper.scaling.spec import ParamSpec, Update

NORM_ITERATIONS = 8
"""Steps of the power iteration for a largest singular value."""


@dataclass(frozen=True, kw_only=True)
class Preconditioned(MatrixOptimizer):
    """What optimizers with statistics of the two sides are set by.

    Preconditioners are renewed every `every` steps; `normalize` divides each update of a matrix by
    its largest singular value (arXiv:2512.05620).
    """

    step_by_trial: ClassVar[bool] = False  # all are renewed at once

    beta1: Rate = 0.9
    beta2: Rate = 0.95
    every: Annotated[int, Bounds(least=1, allowed="a whole number of steps, at least 1")] = 1
    normalize: bool = False

    def kind(self, spec: ParamSpec) -> Update:
        """Hidden matrices are preconditioned; AdamW trains stacks of them, and all else."""
        return super().kind(spec) if spec.matrix == (1, 0) else Update.SIGN


def as_matrices(values: Tensor) -> Tensor:
    """[K, rows, ...] as matrices [K, rows, columns]: more dimensions are columns, as Muon's."""
    return values.reshape(*values.shape[:2], -1)


def side_states(params: Sequence[Tensor], kinds: Sequence[Update], names: Sequence[str]) -> State:
    """Zero [K, rows, rows] of matrices for names with "left", [K, columns, columns] for "right"."""

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
    # `vector` is now gram times a unit vector: its length is near the top eigenvalue, sigma^2.
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


@dataclass(frozen=True, kw_only=True)
class Shampoo(Preconditioned):
    """`p -= schedule * (lr * L^-1/4 m R^-1/4 + weight_decay * p)` for hidden matrices.

    m averages the gradient G by beta1, L and R average G G^T and G^T G by beta2 (Gupta, Koren,
    Singer, arXiv:1802.09568, with averages in place of sums as Anil et al., arXiv:2002.09018), all
    bias-corrected. The roots are renewed every `every` steps. All else trains by AdamW. More than
    two dimensions are one matrix, [first, all others]. `normalize` divides each update by its
    largest singular value (arXiv:2512.05620). eps has the gradient's scale: it is added to the
    roots of the eigenvalues of L and R, and is AdamW's. The decay is independent of the rate.

    With exponents of 1/4 an update has no trace of the gradient's scale, and its singular values
    are of order 1, as Muon's: at the first step they are all 1. Hence the factor of shape,
    (d_out/d_in)^(1 - e_L - e_R) for exponents e_L and e_R (arXiv:2512.05620), is Muon's.
    """

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero averages: `first`, AdamW's `second`; `left`, `right` and their roots of matrices."""
        return {
            **super().init(params, kinds),
            **side_states(params, kinds, ("left", "right", "left_root", "right_root")),
        }

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay and betas."""
        matrices = adam_for_the_rest(params, grads, state, hps, now)
        lrs = current_lrs(params, hps, now)
        beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
        first_bias, second_bias = bias(beta1, now.step), bias(beta2, now.step)
        for i in matrices:
            p, first = params[i], state["first"][i]
            update_averages([first], [grads[i]], beta1)
            update_statistics(state["left"][i], state["right"][i], as_matrices(grads[i]), beta2)
            for side in ("left", "right"):
                average, root = state[side][i], state[f"{side}_root"][i]
                eps = hps.eps[i].reshape(-1)
                root.copy_(_roots(average, root, second_bias, eps, now.step, self.every))
            left, right = state["left_root"][i], state["right_root"][i]
            step = left @ as_matrices(corrected(first, first_bias)) @ right
            step = spectrally_normalized(step) if self.normalize else step
            p.mul_(hps.weight_decay[i] * beside(-now.schedule, p) + 1.0)
            p.sub_(lrs[i] * step.view_as(p))


# An operator: the compiler cannot branch by the number of the step, nor take eigenvalues.
@torch.library.custom_op("sweeper::inverse_fourth_roots", mutates_args=())
def _roots(
    average: Tensor, last: Tensor, weight: Tensor, eps: Tensor, step: Tensor, every: int
) -> Tensor:
    """(average / weight)^-1/4 [K, n, n] at the first step and every `every`; else as `last`.

    Directions that no gradient had a part in are left out: all that is in them is rounding.
    """
    if (int(step) - 1) % every:
        return last.clone()
    values, vectors = eigen(corrected(average, weight))
    unseen = values <= rounding(values)
    roots = (values.clamp(min=0.0).sqrt() + eps[:, None]).rsqrt().masked_fill(unseen, 0.0)
    return (vectors * roots[:, None]) @ vectors.mT


_roots.register_fake(lambda _average, last, *_: torch.empty_like(last))


@dataclass(frozen=True, kw_only=True)
class SOAP(Preconditioned):
    """Adam's step on hidden matrices in the eigenbases of G G^T and G^T G (arXiv:2409.11321).

    `p -= schedule * (lr * Q_L (m' / (sqrt(v) + eps)) Q_R^T + weight_decay * p)`: m averages the
    gradient by beta1, m' = Q_L^T m Q_R, and v averages the squares of Q_L^T G Q_R by beta2, as do
    the statistics of which Q_L and Q_R are eigenvectors, anew every `every` steps. At the first
    step hidden matrices do not move: their bases come from it, and a gradient in its own eigenbasis
    is diagonal, all else being rounding that Adam would blow up. All else trains by AdamW. More
    than two dimensions are one matrix, [first, all others]. `normalize` divides each update by its
    largest singular value (arXiv:2512.05620). The decay is independent of the learning rate.

    The gradient has few directions that matter, and in its eigenbasis these are few entries: the
    update has singular values of order 1, and the factor of shape is Muon's
    (arXiv:2512.05620). At finite width the entries that do not matter count too.
    """

    beta1: Rate = 0.95

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero moments; of matrices `second` is in the bases, `left` and `right` the statistics."""
        return {
            **BaseOptimizer.init(self, params, kinds),
            **side_states(params, kinds, ("left", "right", "left_basis", "right_basis")),
        }

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay and betas."""
        lrs = current_lrs(params, hps, now)
        for i in adam_for_the_rest(params, grads, state, hps, now):
            p, gradient = params[i], as_matrices(grads[i])
            step = self._step(i, gradient, state, hps, now)
            p.mul_(hps.weight_decay[i] * beside(-now.schedule, p) + 1.0)
            p.sub_(lrs[i] * step.view_as(p))
            # After the step: bases must not know the gradient that is seen in them.
            left, right, beta = state["left"][i], state["right"][i], hps.settings["beta2"]
            update_statistics(left, right, gradient, beta)
            for side, statistics in (("left", left), ("right", right)):
                basis = state[f"{side}_basis"][i]
                basis.copy_(_bases(statistics, basis, now.step, self.every))

    def _step(
        self, i: int, gradient: Tensor, state: State, hps: UpdateHps, now: StepInfo
    ) -> Tensor:
        """Adam's step in the bases, seen from outside; 0 at the first."""
        beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
        left, right = state["left_basis"][i], state["right_basis"][i]
        # Bases are 0 before the first step, and so is all that is seen in them. A tensor decides,
        # as a branch on `now.step` would wait for the device.
        rotated, moves = left.mT @ gradient @ right, now.step > 1
        first, second = (as_matrices(state[name][i]) for name in ("first", "second"))
        mean = torch.lerp(first, gradient, beside(1 - beta1, first))
        first.copy_(torch.where(moves, mean, first))
        second.lerp_(rotated.square(), beside(1 - beta2, second))
        count = (now.step - 1).clamp(min=1)
        root = corrected(second, bias(beta2, count)).sqrt()
        mean = left.mT @ corrected(first, bias(beta1, count)) @ right
        step = left @ (mean / (root + hps.eps[i].reshape(-1, 1, 1))) @ right.mT
        return spectrally_normalized(step) if self.normalize else step


@torch.library.custom_op("sweeper::soap_bases", mutates_args=())
def _bases(statistics: Tensor, last: Tensor, step: Tensor, every: int) -> Tensor:
    """Eigenvectors [K, n, n], largest eigenvalues first, every `every` steps; else as `last`.

    0 in place of those that no gradient had a part in: which they are is a matter of rounding.
    """
    count = int(step) - 1
    if count % every:
        return last.clone()
    values, vectors = eigen(statistics)
    seen = values > rounding(values)
    return torch.where(seen[:, None] | values.isnan()[:, None], vectors, 0.0).flip(2).contiguous()


_bases.register_fake(lambda _statistics, last, *_: torch.empty_like(last))
