"""Muon (Jordan et al., 2024), with NorMuon as an option, and AdamH and MuonH of fixed norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from sweeper.engine.optimizers.optimizer import (
    MatrixOptimizer,
    Rate,
    State,
    StepInfo,
    UpdateHps,
    adam_for_the_rest,
    apply_weight_decay,
    beside,
    bias,
    current_lrs,
    empty_state,
    second_root,
    select,
    update_averages,
)
from sweeper.errors import ConfigError
from sweeper.records import Bounds
from sweeper.scaling.spec import SUMMED, ParamSpec, Update

NORMUON_EPS = 1e-10
"""Beside the root of a row's mean square, and the norm: the authors' own."""


@dataclass(frozen=True, kw_only=True)
class Muon(MatrixOptimizer):
    """`p -= schedule * (lr * O(m) + weight_decay * p)`, where O makes all singular values about 1.

    m is the gradient's running average by `momentum` (with `nesterov` looking a step ahead), O
    is `steps` of Newton-Schulz with the polynomial's `coefficients`, as in torch's Muon. Each of
    the matrices that are stacked in a parameter, such as experts, is its own, as in Keller
    Jordan's; a convolution's is [first, all others]. `bfloat16` iterates in that type,
    as torch does; else in the type of the weights. eps bounds the norm that m is divided by, and is
    AdamW's. The decay is independent of the learning rate. With `split` the matrices that a model
    fuses in one parameter, as query, key and value, are orthogonalised each on its own. With
    a `normuon` each row of O is divided by the root of its mean square, averaged by this beta, and
    all of O brought back to the norm that it had (NorMuon, arXiv:2510.05491, with 0.95).

    Nothing here multiplies O by a function of the shape: the parameterization does, as it knows
    which side is the fan-in (`scaling/spectral.py: RULES`, `scaling/relative.py: shape_factor`). It
    sees the whole parameter, also where `split` takes it apart: for three square matrices in one,
    sqrt(d_out/d_in) is sqrt(3) at every width.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = (
        "one_minus_momentum",
        "one_minus_beta1",
        "one_minus_beta2",
    )

    momentum: Rate = 0.95
    nesterov: bool = True
    steps: Annotated[int, Bounds(least=1, most=99, allowed="from 1 to 99")] = 5
    coefficients: tuple[float, ...] = (3.4445, -4.7750, 2.0315)
    bfloat16: bool = False
    split: bool = False
    normuon: Rate | None = None
    beta1: Rate = 0.9
    beta2: Rate = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.coefficients) != 3:
            raise ConfigError("coefficients", self.coefficients, "three numbers")

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay, betas and momentum."""
        hidden = adam_for_the_rest(params, grads, state, hps, now)
        chosen, own = [params[i] for i in hidden], select(hps, hidden)
        lrs = current_lrs(chosen, own, now)
        apply_weight_decay(chosen, own, now)
        for i, p, lr in zip(hidden, chosen, lrs, strict=True):
            p.sub_(lr * self.direction(i, grads[i], state, hps).reshape(p.shape))

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero averages: `first`, Adam's `second`; NorMuon's `rows` of matrices."""
        state = super().init(params, kinds)
        if self.normuon is not None:
            state["rows"] = [
                torch.zeros_like(p[..., :1]) if kind.orthogonal else empty_state(p)
                for p, kind in zip(params, kinds, strict=True)
            ]
        return state

    def direction(self, i: int, grad: Tensor, state: State, hps: UpdateHps) -> Tensor:
        """O of parameter i's momentum, moved in place: [matrices of all trials, rows, columns]."""
        momentum, average = hps.settings["momentum"], state["first"][i]
        update_averages([average], [grad], momentum)
        # The average as it would be after the same gradient once more.
        m = torch.lerp(grad, average, beside(momentum, grad)) if self.nesterov else average
        parts = self.parts(i, hps)
        # The parts of a trial's matrix, as if they were further trials' matrices.
        whole = hps.as_matrices(m, i)
        matrices = whole.reshape(whole.shape[0] * parts, whole.shape[1] // parts, -1)
        min_norm = hps.eps[i].reshape(-1, 1, 1).repeat_interleave(parts * hps.stack(i), 0)
        orthogonal = self._newton_schulz(matrices, min_norm)
        if self.normuon is None:
            return orthogonal
        return _by_row(orthogonal, state["rows"][i], self.normuon)

    def parts(self, i: int, hps: UpdateHps) -> int:
        """How many matrices, each for itself, a matrix of parameter i is taken apart into."""
        return hps.parts[i] if self.split and hps.parts else 1

    def _newton_schulz(self, matrices: Tensor, min_norm: Tensor) -> Tensor:
        """Matrices [K, rows, columns] with singular values moved to about 1.

        The polynomial a s + b s^3 + c s^5 of a matrix acts on its singular values s alone. Its
        coefficients make small ones grow fast. They end between about 0.7 and 1.2 rather than
        converge to 1, which Muon does not need: so five steps are enough.
        """
        a, b, c = self.coefficients
        x = matrices.bfloat16() if self.bfloat16 else matrices
        # X X^T has the size of the rows: of a tall matrix the transpose costs less.
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        # The Frobenius norm bounds the largest singular value: all s must start within [0, 1].
        x = x / torch.maximum(torch.linalg.matrix_norm(x, keepdim=True), min_norm.to(x.dtype))
        for _ in range(self.steps):
            gram = x @ x.mT
            # a x + (b gram + c gram^2) x
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return (x.mT if tall else x).to(matrices.dtype)


def _by_row(matrices: Tensor, means: Tensor, beta: float) -> Tensor:
    """Rows over the roots of their mean squares, `means` moved in place; the norm as it was."""
    # A convolution's has columns of its own for each input, all alike.
    rows = means.view(*matrices.shape[:2], -1)
    rows.lerp_(matrices.square().mean(2, keepdim=True).expand_as(rows), 1 - beta)
    scaled = matrices / (rows[..., :1].sqrt() + NORMUON_EPS)
    before, after = (torch.linalg.matrix_norm(x, keepdim=True) for x in (matrices, scaled))
    rescaled: Tensor = scaled * (before / (after + NORMUON_EPS))
    return rescaled


# AdamH and MuonH: weights of fixed norm, and steps that are a share of it. Where decay balances the
# steps, the norm of a weight ends on some sphere anyway, and a step is sqrt(2 lr decay) of it: here
# that share is the learning rate, from the first step on. Nothing decays, nothing warms up.


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
        on_spheres = spec.role in SUMMED and len(spec.shape) > 1 and spec.init == "normal"
        return Update.HYPERBALL if on_spheres else Update.SIGN

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay and betas."""
        on_spheres = adam_for_the_rest(params, grads, state, hps, now)
        adam_on_spheres(on_spheres, params, grads, state, hps, now)


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
        on_spheres = adam_for_the_rest(params, grads, state, hps, now)
        matrices = [i for i in on_spheres if hps.kinds[i].orthogonal]
        adam_on_spheres(
            [i for i in on_spheres if i not in matrices], params, grads, state, hps, now
        )
        chosen = [params[i] for i in matrices]
        lrs = current_lrs(chosen, select(hps, matrices), now)
        for i, p, lr in zip(matrices, chosen, lrs, strict=True):
            count = self.parts(i, hps) * hps.stack(i)
            step_on_sphere(p, self.direction(i, grads[i], state, hps), lr, count)


def adam_on_spheres(
    on_spheres: Sequence[int],
    params: list[Tensor],
    grads: list[Tensor],
    state: State,
    hps: UpdateHps,
    now: StepInfo,
) -> None:
    """AdamH's step of the parameters `on_spheres`, in place."""
    beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
    bias1, scale = bias(beta1, now.step), bias(beta2, now.step).rsqrt()
    chosen, own = [params[i] for i in on_spheres], select(hps, on_spheres)
    for i, p, lr in zip(on_spheres, chosen, current_lrs(chosen, own, now), strict=True):
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
