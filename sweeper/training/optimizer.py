"""What the training loop asks of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from sweeper.scaling.spec import ParamSpec, Update

State = dict[str, list[Tensor]]
"""By a quantity's name, one tensor [K, ...] a parameter; [K, 0] where a parameter has none."""


@dataclass(frozen=True, kw_only=True)
class UpdateHps:
    """What each of K trials updates its parameters with; nothing of it changes during a run.

    Lists over parameters: `kinds`, how its updates scale; `lr`, the peak learning rate, `eps`,
    and `weight_decay`, the fraction of a weight that one step at the schedule's peak removes, all
    tensors [K, 1, ..., 1] (see `Prescription`). `parts` counts the matrices that are fused in a
    parameter, blocks of its rows; empty: one in each. `settings` are the optimizer's, such as
    betas, by name, tensors [K].
    """

    kinds: Sequence[Update]
    lr: list[Tensor]
    eps: list[Tensor]
    weight_decay: list[Tensor]
    settings: Mapping[str, Tensor]
    parts: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """Where the run stands: `step`, a scalar from 1, and the factors `schedule` [K], 1 at the peak.

    Tensors, so that neither waits for the device nor makes a compiled update compile again.
    `biases` are `1 - beta^step` [K] of the optimizer's settings, by name, where they are at hand.
    """

    step: Tensor
    schedule: Tensor
    biases: Mapping[str, Tensor] = field(default_factory=dict)


class Optimizer(Protocol):
    """Init and update over stacked parameters: lists of tensors [K, ...], one slice a trial.

    `eps` and `weight_decay` are those before a scheme's and a trial's factors. `hyperparameters`
    names settings that a space may hold. One that divides by the root of a second moment may have
    `second_moment_roots(state, hps, step)`, which gives these roots after `step` steps, as eps
    meets them: a tensor for each parameter, [K, ...] or [K, 0] where there is none.
    """

    hyperparameters: ClassVar[tuple[str, ...]]
    eps: float
    weight_decay: float

    def kind(self, spec: ParamSpec) -> Update:
        """How the entries of this parameter's updates scale."""
        ...

    def settings(self, values: Mapping[str, float]) -> dict[str, float]:
        """One trial's `UpdateHps.settings`; hyperparameters that `values` lacks count as 1."""
        ...

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Fresh state for `params`."""
        ...

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place. A slice must never touch another; no host waits for the device."""
        ...


def unsqueeze_like(values: Tensor, like: Tensor) -> Tensor:
    """`values` [K] as [K, 1, ..., 1], to act on every entry of a trial's slice of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def scale_distance_from_one(value: float, factor: float) -> float:
    """`value` with its distance from 1 times `factor`: how a decay rate such as beta is searched.

    An average by beta looks back over about 1 / (1 - beta) steps: a factor on the distance is one
    on that horizon. Never below 0, where nothing is remembered.
    """
    return max(0.0, 1.0 - (1.0 - value) * factor)
