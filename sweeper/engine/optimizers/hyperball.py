"""AdamH and MuonH: weights of fixed norm, and steps that are a share of it.

The sphere of the initial norm is what the norm of a weight ends on anyway where decay balances the
steps, at a step of about sqrt(2 lr decay) of it: here that share is the learning rate, from the
first step on. So there is nothing to decay and nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeper.engine.optimizers.muon import Muon
from sweeper.engine.optimizers.optimizer import (
    MatrixOptimizer,
    Rate,
    State,
    StepInfo,
    UpdateHps,
    adam_for_the_rest,
    beside,
    bias,
    current_lrs,
    second_root,
    select,
    update_averages,
)
from sweeper.scaling.spec import SUMMED, ParamSpec, Update

LEAST_NORM = 1e-10
"""What a direction's norm counts as at least: marin's own."""


@dataclass(frozen=True, kw_only=True)
class AdamH(MatrixOptimizer):
    """`w' = w - schedule * lr * |w| u / |u|`, then `w = w' |w| / |w'|`, u being Adam's direction.

    So trains what sums over an input that grows: hidden weights, the readout, projections down.
    Each of the matrices that are stacked in a parameter has its own norm. All else trains by Adam
    at a rate of its own, `gamma_adam` times eta: embeddings, vectors, and what the plan does not
    draw, since a weight that starts at 0 would stay there. `weight_decay` is Adam's alone.
    As in marin-community/marin (`levanter.optim.adamh`).
    """

    beta1: Rate = 0.9
    beta2: Rate = 0.95
    weight_decay: Rate = 0.0

    def kind(self, spec: ParamSpec) -> Update:
        """A share of the norm of what sums over a growing input and is drawn; else like a sign."""
        held = spec.role in SUMMED and len(spec.shape) > 1 and spec.init == "normal"
        return Update.HYPERBALL if held else Update.SIGN

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay and betas."""
        held = adam_for_the_rest(params, grads, state, hps, now)
        adam_on_spheres(held, params, grads, state, hps, now)


@dataclass(frozen=True, kw_only=True)
class MuonH(Muon):
    """AdamH's step along Muon's direction, for hidden matrices; the readout trains as under AdamH.

    With `split` the matrices that a model fuses in one parameter have norms of their own, too. With
    a `normuon` it is NorMuonH. As in marin-community/marin (`levanter.optim.muonh`) and
    microsoft/ArchScale.
    """

    beta2: Rate = 0.95
    weight_decay: Rate = 0.0

    def kind(self, spec: ParamSpec) -> Update:
        """Hidden matrices, those of them that Muon takes; all else as AdamH's."""
        adamh = AdamH().kind(spec)
        orthogonal = super().kind(spec).orthogonal and adamh.holds_norm
        return Update.ORTHOGONAL_HYPERBALL if orthogonal else adamh

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay, betas and momentum."""
        held = adam_for_the_rest(params, grads, state, hps, now)
        matrices = [i for i in held if hps.kinds[i].orthogonal]
        adam_on_spheres([i for i in held if i not in matrices], params, grads, state, hps, now)
        chosen = [params[i] for i in matrices]
        lrs = current_lrs(chosen, select(hps, matrices), now)
        for i, p, lr in zip(matrices, chosen, lrs, strict=True):
            count = self.parts(i, hps) * hps.stack(i)
            step_on_sphere(p, self.direction(i, grads[i], state, hps), lr, count)


def adam_on_spheres(
    held: Sequence[int],
    params: list[Tensor],
    grads: list[Tensor],
    state: State,
    hps: UpdateHps,
    now: StepInfo,
) -> None:
    """AdamH's step of the parameters `held`, in place."""
    beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
    bias1, scale = bias(beta1, now.step), bias(beta2, now.step).rsqrt()
    chosen, own = [params[i] for i in held], select(hps, held)
    for i, p, lr in zip(held, chosen, current_lrs(chosen, own, now), strict=True):
        first, second = state["first"][i], state["second"][i]
        update_averages([first], [grads[i]], beta1)
        root = second_root(second, grads[i], beta2, scale)
        direction = first / beside(bias1, first) / root.add_(hps.eps[i])
        step_on_sphere(p, direction, lr, hps.stack(i))


def step_on_sphere(p: Tensor, direction: Tensor, lr: Tensor, count: int) -> None:
    """Each of a trial's `count` matrices in `p` [K, ...] moved on its own sphere, in place."""
    w, u = (x.reshape(len(p) * count, -1) for x in (p, direction))
    norm, length = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (w, u))
    share = lr.reshape(-1, 1).repeat_interleave(count, 0)
    moved = w - u * (share * norm / length.clamp(min=LEAST_NORM))
    now = torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp(min=LEAST_NORM)
    p.copy_((moved * (norm / now)).view_as(p))
