"""What the training loop asks of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from sweeper.scaling.spec import ParamSpec, Update
from sweeper.trial import PlainHps

State = dict[str, list[Tensor]]
"""By a quantity's name, one tensor [K, ...] a parameter; [K, 0] where a parameter has none."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """What each of K trials trains a parameter with; nothing of it changes during a run.

    Lists over parameters: `kinds`, how its updates scale; `lr`, the peak learning rate, `eps`,
    and `weight_decay`, the share of a weight that one step at the schedule's peak removes, all
    tensors [K, 1, ..., 1]. `own` are the optimizer's own settings by name, tensors [K].
    """

    kinds: Sequence[Update]
    lr: list[Tensor]
    eps: list[Tensor]
    weight_decay: list[Tensor]
    own: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Now:
    """Where the run stands: `step`, a scalar tensor from 1, and `share` [K], the schedule's value.

    Tensors, so that neither waits for the device nor makes a compiled update compile again.
    """

    step: Tensor
    share: Tensor


class Optimizer(Protocol):
    """Init and update over stacked parameters: lists of tensors [K, ...], one slice a trial.

    `eps` and `weight_decay` are the trials' own before a scheme's and a trial's factors.
    `hyperparameters` names settings of its own that a space may hold. One that divides by the
    root of a second moment may have `roots(state, factors, step)`, which gives these roots after
    `step` steps, as eps meets them: a tensor a parameter, [K, ...] or [K, 0] where there is none.
    """

    hyperparameters: ClassVar[tuple[str, ...]]
    eps: float
    weight_decay: float

    def kind(self, spec: ParamSpec) -> Update:
        """How the entries of this parameter's updates scale."""
        ...

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """One trial's `Factors.own`, given its hyperparameters; those it lacks count as 1."""
        ...

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Fresh state for `params`."""
        ...

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, factors: Factors, now: Now
    ) -> None:
        """One step in place. A slice must never touch another; no host waits for the device."""
        ...


def along(values: Tensor, like: Tensor) -> Tensor:
    """`hps` [K] as [K, 1, ..., 1], to act on every entry of a trial's slice of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def complement(value: float, factor: float) -> float:
    """`value` with its distance from 1 times `factor`: how a decay rate such as beta is searched.

    Never below 0, where nothing is remembered.
    """
    return max(0.0, 1.0 - (1.0 - value) * factor)
