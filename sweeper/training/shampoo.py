"""Shampoo: gradients between the inverse fourth roots of their two second moments.

Gupta, Koren, Singer (arXiv:1802.09568), with running averages in place of sums (Anil et al.,
arXiv:2002.09018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeper.scaling.spec import Update
from sweeper.training.hidden_matrices import adam_for_the_rest, zero_moments
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
    update_averages,
)


@dataclass(frozen=True, kw_only=True)
class Shampoo(Preconditioned):
    """`p -= schedule * (lr * L^-1/4 m R^-1/4 + weight_decay * p)` for hidden matrices.

    m averages the gradient G by beta1, L and R average G G^T and G^T G by beta2, all
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
            **zero_moments(params, kinds),
            **side_states(params, kinds, ("left", "right", "left_root", "right_root")),
        }

    def second_moment_roots(self, state: State, hps: UpdateHps, step: int) -> list[Tensor]:
        """What Adam divides by before eps is added; see `Optimizer`."""
        return adam_roots(state["second"], hps, step)

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay and betas."""
        matrices = adam_for_the_rest(params, grads, state, hps, now)
        lrs = current_lrs(params, hps, now)
        first_bias = bias(hps.settings["beta1"], now.step)
        for i in matrices:
            p, first = params[i], state["first"][i]
            update_averages([first], [grads[i]], hps.settings["beta1"])
            left, right = self._renewed_roots(i, grads[i], state, hps, now)
            step = left @ as_matrices(corrected(first, first_bias)) @ right
            step = spectrally_normalized(step) if self.normalize else step
            p.mul_(hps.weight_decay[i] * beside(-now.schedule, p) + 1.0)
            p.sub_(lrs[i] * step.view_as(p))

    def _renewed_roots(
        self, i: int, grad: Tensor, state: State, hps: UpdateHps, now: StepInfo
    ) -> list[Tensor]:
        """L^-1/4 and R^-1/4 of parameter `i`, whose statistics now hold its gradient."""
        beta, eps = hps.settings["beta2"], hps.eps[i].reshape(-1)
        update_statistics(state["left"][i], state["right"][i], as_matrices(grad), beta)
        for side in ("left", "right"):
            average, root = state[side][i], state[f"{side}_root"][i]
            root.copy_(_roots(average, root, bias(beta, now.step), eps, now.step, self.every))
        return [state["left_root"][i], state["right_root"][i]]


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


@_roots.register_fake
def _(
    average: Tensor, last: Tensor, weight: Tensor, eps: Tensor, step: Tensor, every: int
) -> Tensor:
    return torch.empty_like(last)
