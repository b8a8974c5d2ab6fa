"""What optimizers of hidden matrices share: which those are, and AdamW for all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sweeper.scaling.spec import ParamSpec, Role, Update
from sweeper.training.optimizer import State, StepInfo, UpdateHps
from sweeper.training.updates import adam, empty_state


def hidden_kind(spec: ParamSpec) -> Update:
    """Of hidden matrices as an orthogonal matrix, like a sign of all else."""
    hidden = spec.role is Role.HIDDEN and len(spec.shape) >= 2
    return Update.ORTHOGONAL if hidden else Update.SIGN


def zero_moments(params: list[Tensor], kinds: Sequence[Update]) -> State:
    """Zero `first` moments of the parameters' shapes; `second` ones of what AdamW trains."""
    return {
        "first": [torch.zeros_like(p) for p in params],
        "second": [
            empty_state(p) if kind is Update.ORTHOGONAL else torch.zeros_like(p)
            for p, kind in zip(params, kinds, strict=True)
        ],
    }


def adam_for_the_rest(
    params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
) -> list[int]:
    """AdamW's step for all that is no hidden matrix, in place; the indices of those that are."""
    matrices = [i for i, kind in enumerate(hps.kinds) if kind is Update.ORTHOGONAL]
    rest = [i for i in range(len(params)) if i not in matrices]
    tensors = (params, grads, state["first"], state["second"])
    weights, gradients, first, second = ([values[i] for i in rest] for values in tensors)
    if rest:
        adam(weights, gradients, first, second, select(hps, rest), now)
    return matrices


def select(hps: UpdateHps, part: Sequence[int]) -> UpdateHps:
    """The hyperparameters of some of the parameters."""
    return replace(
        hps,
        kinds=[hps.kinds[i] for i in part],
        lr=[hps.lr[i] for i in part],
        eps=[hps.eps[i] for i in part],
        weight_decay=[hps.weight_decay[i] for i in part],
        parts=[hps.parts[i] for i in part] if hps.parts else (),
    )
