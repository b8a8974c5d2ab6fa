"""What the training loop asks of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from sweeper.records import WRITTEN_IF_SET, Bounded, Bounds, Positive
from sweeper.scaling.prescription import UpdateRule
from sweeper.scaling.spec import ParamSpec, Role, Update
from sweeper.trial import PlainHps

State = dict[str, list[Tensor]]
"""Tensors [K, ...] by a quantity's name, one a parameter; [K, 0] where a parameter has none."""


@dataclass(frozen=True, kw_only=True)
class UpdateHps:
    """What each of K trials updates its parameters with; nothing of it changes during a run.

    Lists over parameters: `kinds`, how its updates scale; `lr`, the peak learning rate, `eps`,
    and `weight_decay`, the fraction of a weight that one step at the schedule's peak removes, all
    tensors [K, 1, ..., 1] (see `Prescription`). `parts` counts the matrices that are fused in a
    parameter, blocks of its rows; empty: one in each. `matrices` are those of the `ParamSpec`s;
    empty: [first, all others]. `settings` are the optimizer's, such as
    betas, by name, tensors [K].
    """

    kinds: Sequence[Update]
    lr: list[Tensor]
    eps: list[Tensor]
    weight_decay: list[Tensor]
    settings: Mapping[str, Tensor]
    parts: Sequence[int] = ()
    matrices: Sequence[tuple[int, int]] = ()

    def as_matrices(self, values: Tensor, i: int) -> Tensor:
        """`values` [K, ...] of parameter i as [K x stacked, rows, columns]."""
        rows = self.matrices[i][1] if self.matrices else 0
        return values.reshape(len(values) * self.stack(i), rows or values.shape[1], -1)

    def stack(self, i: int) -> int:
        """How many matrices are stacked in parameter i; 1 where it is no stack of them."""
        return max(1, self.matrices[i][0]) if self.matrices else 1


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """Where the run stands: `step` from 1, and the factors `schedule` [K], 1 at the peak.

    The step is a scalar, or [K] where trials skip steps that overflow.
    Tensors, so that neither waits for the device nor makes a compiled update compile again.
    `biases` are `1 - beta^step` [K] of the optimizer's settings, by name, where they are at hand.
    """

    step: Tensor
    schedule: Tensor
    biases: Mapping[str, Tensor] = field(default_factory=dict)


class Optimizer(UpdateRule, Protocol):
    """Init and update over stacked parameters: lists of tensors [K, ...], one slice a trial.

    `hyperparameters` names settings that a space may hold.
    """

    hyperparameters: ClassVar[tuple[str, ...]]

    def settings(self, values: Mapping[str, float]) -> dict[str, float]:
        """One trial's `UpdateHps.settings`; hyperparameters that `values` lacks count as 1."""

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Fresh state for `params`."""

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place. A slice must never touch another; no host waits for the device."""


def unsqueeze_like(values: Tensor, like: Tensor) -> Tensor:
    """`values` [K] as [K, 1, ..., 1], to act on every entry of a trial's slice of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def scale_distance_from_one(value: float, factor: float) -> float:
    """`value` with its distance from 1 times `factor`: how a decay rate such as beta is searched.

    An average by beta looks back over about 1 / (1 - beta) steps: a factor on the distance is one
    on that horizon. Never below 0, where nothing is remembered.
    """
    return max(0.0, 1.0 - (1.0 - value) * factor)


Rate = Annotated[float, Bounds(least=0, below=1, allowed="at least 0 and below 1")]


@dataclass(frozen=True, kw_only=True)
class BaseOptimizer(Bounded):
    """An optimizer of our own: its rates are searched, and its state are averages that begin at 0.

    `averages` names those of every parameter's shape; `step_by_trial` tells that `StepInfo.step`
    may be [K]. Which parameters are `decayed` is decided by the model where it is None.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("one_minus_beta1", "one_minus_beta2")
    averages: ClassVar[tuple[str, ...]] = ("first", "second")
    step_by_trial: ClassVar[bool] = True

    eps: Positive = 1e-8
    weight_decay: Annotated[float, Bounds(least=0)] = 2.0**-13
    decayed: Literal["all", "matrices"] | None = field(default=None, metadata=WRITTEN_IF_SET)

    def kind(self, spec: ParamSpec) -> Update:
        """Every parameter's updates are of order 1, like a sign."""
        return Update.SIGN

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """Each rate that `hyperparameters` names as `one_minus_<rate>`, with its factor."""
        rates = (name.removeprefix("one_minus_") for name in self.hyperparameters)
        return {
            rate: scale_distance_from_one(getattr(self, rate), hps.get(f"one_minus_{rate}", 1.0))
            for rate in rates
        }

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero `averages` of the parameters' shapes."""
        return {name: [torch.zeros_like(p) for p in params] for name in self.averages}


def clip_gradients(grads: list[Tensor], max_norm: float) -> Tensor:
    """Scale each trial's gradients [K, ...] in place so that their joint norm is at most this.

    As `torch.nn.utils.clip_grad_norm_`, a trial at a time. Whose were scaled, [K] on their device.
    """
    # In float64, where squares of tiny entries do not vanish, nor those of large ones overflow.
    squares = [grad.double().flatten(1).square().sum(1) for grad in grads]  # each [K]
    factor = (max_norm / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(unsqueeze_like(factor.to(grad.dtype), grad))
    return factor < 1.0


def beside(values: Tensor, param: Tensor) -> Tensor:
    """`values` [K] as [K, 1, ..., 1] of a parameter's type."""
    return unsqueeze_like(values, param).to(param.dtype)


def empty_state(param: Tensor) -> Tensor:
    """A state of nothing, [K, 0]."""
    return param.new_zeros(len(param), 0)


def current_lrs(params: Sequence[Tensor], hps: UpdateHps, now: StepInfo) -> list[Tensor]:
    """Learning rates of this step, [K, 1, ..., 1]."""
    return [lr * beside(now.schedule, p) for lr, p in zip(hps.lr, params, strict=True)]


def apply_weight_decay(params: list[Tensor], hps: UpdateHps, now: StepInfo) -> None:
    """`p *= 1 - schedule * weight_decay`, in place, whatever the learning rate."""
    for p, decay in zip(params, hps.weight_decay, strict=True):
        p.mul_(decay * beside(-now.schedule, p) + 1.0)


def update_averages(averages: list[Tensor], values: list[Tensor], beta: Tensor) -> None:
    """Running averages in place: `a = beta * a + (1 - beta) * v`, beta [K]."""
    for average, value in zip(averages, values, strict=True):
        average.lerp_(value, beside(1 - beta, average))


def bias(beta: Tensor, step: Tensor | int) -> Tensor:
    """`1 - beta^step`: what an average that began at 0 is too small by, [K].

    It is `-expm1(step log beta)`: a power near 1 would lose its digits in float32.
    """
    return -torch.expm1(torch.log(beta) * step)


def bias_now(name: str, hps: UpdateHps, now: StepInfo) -> Tensor:
    """`bias` of a setting at this step, [K]: the one at hand, or worked out."""
    at_hand = now.biases.get(name)
    return bias(hps.settings[name], now.step) if at_hand is None else at_hand


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    hps: UpdateHps,
    now: StepInfo,
    *,
    atan2: bool = False,
) -> None:
    """Adam's step with independent decay, in place, by beta1 and beta2 of `hps`: see `AdamW`."""
    # A plain loop, not torch._foreach: the compiler makes one kernel of all that happens to a
    # parameter, but knows not all functions of lists. Uncompiled, those would loop as well, because
    # trials have settings of their own.
    beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
    bias1, bias2 = bias_now("beta1", hps, now), bias_now("beta2", hps, now)
    scale = bias2.rsqrt()
    update_averages(first, grads, beta1)
    apply_weight_decay(params, hps, now)
    lrs = current_lrs(params, hps, now)
    for p, g, m, v, lr, eps in zip(params, grads, first, second, lrs, hps.eps, strict=True):
        root = second_root(v, g, beta2, scale)
        if atan2:
            angle = torch.atan2(m / beside(bias1, p), root).mul_(lr)
            p.add_(angle, alpha=-4 / pi)
        else:
            # eps joins the bias-corrected root, as in torch: before, it would weigh more at first.
            p.addcdiv_(m * (lr / beside(bias1, p)), root.add_(eps), value=-1.0)


def second_root(second: Tensor, grad: Tensor, beta2: Tensor, scale: Tensor) -> Tensor:
    """The second moment moved in place towards the squared gradient, and its root times `scale`."""
    second.mul_(beside(beta2, second)).addcmul_(grad * beside(1 - beta2, second), grad)
    return second.sqrt().mul_(beside(scale, second))


@dataclass(frozen=True, kw_only=True)
class MatrixOptimizer(BaseOptimizer):
    """An optimizer of hidden matrices; all else trains by AdamW (`adam_for_the_rest`)."""

    beside_adam: ClassVar[bool] = True

    def kind(self, spec: ParamSpec) -> Update:
        """Orthogonal of hidden matrices, like a sign of all else."""
        # One dimension has no singular values to bring to 1, nor have dimensions that mix.
        hidden = spec.role is Role.HIDDEN and len(spec.shape) >= 2 and spec.matrix[0] > 0
        return Update.ORTHOGONAL if hidden else Update.SIGN

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero `first` moments of the parameters' shapes; `second` ones of what Adam steps by."""
        return {
            "first": [torch.zeros_like(p) for p in params],
            "second": [
                empty_state(p) if kind.orthogonal else torch.zeros_like(p)
                for p, kind in zip(params, kinds, strict=True)
            ],
        }


def adam_for_the_rest(
    params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
) -> list[int]:
    """AdamW's step for all that has no update of its own, in place; the indices of what has."""
    matrices = [i for i, kind in enumerate(hps.kinds) if kind is not Update.SIGN]
    rest = [i for i in range(len(params)) if i not in matrices]
    tensors = (params, grads, state["first"], state["second"])
    weights, gradients, first, second = ([values[i] for i in rest] for values in tensors)
    if rest:
        adam(weights, gradients, first, second, select(hps, rest), now)
    return matrices


def select(hps: UpdateHps, part: Sequence[int]) -> UpdateHps:
    """The hyperparameters of some of the parameters."""
    lists = ("kinds", "lr", "eps", "weight_decay", "parts", "matrices")
    chosen: dict[str, Any] = {
        name: [values[i] for i in part] if (values := getattr(hps, name)) else () for name in lists
    }
    return replace(hps, **chosen)
