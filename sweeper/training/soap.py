"""SOAP: Adam in the eigenbasis of Shampoo's statistics (Vyas et al., arXiv:2409.11321)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeper.scaling.spec import Update
from sweeper.training.hidden_matrices import adam_for_the_rest
from sweeper.training.optimizer import State, StepInfo, UpdateHps
from sweeper.training.preconditioning import (
    Preconditioned,
    as_matrices,
    corrected,
    eigen,
    rounding,
    side_states,
    spectrally_normalized,
    update_statistics,
)
from sweeper.training.updates import (
    adam_roots,
    beside,
    bias,
    current_lrs,
)


@dataclass(frozen=True, kw_only=True)
class SOAP(Preconditioned):
    """Adam's step on hidden matrices as seen in the eigenbases of G G^T and G^T G.

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

    beta1: float = 0.95

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero moments; of matrices `second` is in the bases, `left` and `right` the statistics."""
        return {
            "first": [torch.zeros_like(p) for p in params],
            "second": [torch.zeros_like(p) for p in params],
            **side_states(params, kinds, ("left", "right", "left_basis", "right_basis")),
        }

    def second_moment_roots(self, state: State, hps: UpdateHps, step: int) -> list[Tensor]:
        """What Adam divides by before eps is added, of matrices in their bases; see `Optimizer`."""
        roots = adam_roots(state["second"], hps, step)
        moves = adam_roots(state["second"], hps, max(step - 1, 1))
        orthogonal = [kind is Update.ORTHOGONAL for kind in hps.kinds]
        return [moves[i] if late else roots[i] for i, late in enumerate(orthogonal)]

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
            self._renew(i, gradient, state, hps, now)

    def _step(
        self, i: int, gradient: Tensor, state: State, hps: UpdateHps, now: StepInfo
    ) -> Tensor:
        """Adam's step in the bases, seen from outside; 0 at the first."""
        beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
        left, right = state["left_basis"][i], state["right_basis"][i]
        # Bases are 0 before the first step, and so is all that is seen in them.
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

    def _renew(self, i: int, gradient: Tensor, state: State, hps: UpdateHps, now: StepInfo) -> None:
        """Statistics with this gradient, and what follows from them for the next step."""
        update_statistics(state["left"][i], state["right"][i], gradient, hps.settings["beta2"])
        for side in ("left", "right"):
            basis = state[f"{side}_basis"][i]
            basis.copy_(_bases(state[side][i], basis, now.step, self.every))


# An operator: the compiler cannot branch by the number of the step, nor take eigenvalues.
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


@_bases.register_fake
def _(statistics: Tensor, last: Tensor, step: Tensor, every: int) -> Tensor:
    return torch.empty_like(last)
