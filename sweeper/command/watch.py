"""Measure a model in the user's own training loop, for a coordinate check of a command."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from sweeper.command.in_script import FILE, STEPS
from sweeper.engine.measure import (
    ModuleMeasurement,
    Outputs,
    is_matrix,
    is_measured,
    not_seen,
    recording,
    rms,
)
from sweeper.files import write_atomically
from sweeper.plan.in_training import watch_optimizers
from sweeper.plan.plan import TransferPlan
from sweeper.records import to_json

Model = TypeVar("Model", bound=nn.Module)


@overload
def watch(watched: Model) -> Model: ...


@overload
def watch(watched: Optimizer | Sequence[Optimizer], plan: TransferPlan) -> None: ...


def watch(watched: Any, plan: TransferPlan | None = None) -> Any:
    """Look at a model in a check, or at optimizers beside the plan that they train by.

    `watch(model)`, for `sweeper check`, records the sizes of all modules' outputs, and returns the
    model. Call it once the model has its initial weights, before the first step. The first batch
    that the model is called with is evaluated anew after each step, without gradients and in
    evaluation mode, and the change of every module's output is written to a file. Outside of a
    check it does nothing. The model must be whole in every process: neither sharded nor compiled.

    `watch(optimizer, plan)`, for a large run, raises BadInput at a step whose rates, eps, decay or
    updates are not the plan's, or whose weights `init_` did not draw, and warns at the end of the
    process of a highest rate below 0.95 of the planned one. Where several share the parameters,
    give all of them. In a trial all is seen without it; `SWEEPER_CHECK_PLAN=0` turns it off.
    """
    if plan is not None:
        watch_optimizers([*watched] if isinstance(watched, Sequence) else [watched], plan)
        return None
    model = watched
    if path := os.environ.get(FILE):
        _Watch(model, Path(path), int(os.environ.get(STEPS, "4")))
    return model


class _Watch:
    def __init__(self, model: nn.Module, path: Path, steps: int) -> None:
        self.model, self.path, self.steps = model, path, steps
        self.start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.trained = {name for name, p in model.named_parameters() if p.requires_grad}
        self.first: tuple[Outputs, tuple[Any, Mapping[str, Any]]] | None = None
        self.changes: list[tuple[dict[str, float], dict[str, float]]] = []
        self._versions = self._now()
        self._busy = False
        self._handle = model.register_forward_pre_hook(self._called, with_kwargs=True)

    def _now(self) -> int:
        """A number that grows whenever a parameter is written to: by a step of the optimizer."""
        return sum(p._version for p in self.model.parameters())

    def _called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._busy:  # the model is called to be measured
            return
        self._busy = True
        try:
            self._look(args, kwargs)
        finally:
            self._busy = False

    def _look(self, args: Any, kwargs: Any) -> None:
        if self.first is None:
            # A copy: loaders may fill the same tensors with the next batch.
            batch = deepcopy((args, kwargs))
            self.first = (self._evaluate(batch)[0], batch)
            return
        if self._now() == self._versions:
            return
        self._versions = self._now()
        before, batch = self.first
        after, _ = self._evaluate(batch)
        # Twice: what all weights together have changed; and, the model as it was at the start,
        # what each module's own new weights change of its output (its `direct_changes`).
        now = {name: p.detach() for name, p in self.model.named_parameters()}
        _, moved = self._evaluate(batch, self.start, now)
        changes = {name: _change(x, before.get(name)) for name, x in after.items()}
        direct = {name: _change(x, before.get(name)) for name, x in moved.items()}
        self.changes.append((changes, direct))
        if len(self.changes) == self.steps:
            self._handle.remove()
            self._write()

    def _evaluate(
        self,
        batch: tuple[Any, Mapping[str, Any]],
        weights: Mapping[str, Tensor] = MappingProxyType({}),
        others: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> tuple[Outputs, Outputs]:
        """Outputs of the batch; the model has `weights` where given, each module alone `others`."""
        outputs: Outputs = {}
        with_others: Outputs = {}
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        # A model may write into its arguments.
        args, kwargs = deepcopy(batch)
        try:
            # The script's random numbers are those of an unwatched run.
            devices = list(range(torch.cuda.device_count()))
            with (
                torch.random.fork_rng(devices=devices),
                torch.no_grad(),
                recording(self.model, self.trained, others, outputs, with_others),
            ):
                functional_call(self.model, dict(weights), args, dict(kwargs))
        finally:
            for module, mode in modes:
                # One by one: `train()` would set all below too, and undo a part that the script
                # keeps in eval.
                module.training = mode
        return outputs, with_others

    def _write(self) -> None:
        if os.environ.get("RANK", "0") != "0" or self.first is None:
            return
        measured = [
            ModuleMeasurement(
                name=name,
                role=None,
                entries=sum(x.numel() for x in tensors),
                rms=rms(tensors),
                changes=tuple(changes[name] for changes, _ in self.changes),
                direct_changes=tuple(part[name] for _, part in self.changes if name in part),
            )
            for name, tensors in self.first[0].items()
            if all(name in changes for changes, _ in self.changes)
        ]
        measured += [not_seen(name, role=None) for name in self._not_seen(measured)]
        write_atomically(self.path, json.dumps(to_json(measured)))

    def _not_seen(self, measured: Sequence[ModuleMeasurement]) -> list[str]:
        """Matrices that have moved and that no row shows."""
        direct = [row.name for row in measured if row.direct_changes]
        return [
            name
            for name, now in self.model.named_parameters()
            if is_matrix(now.shape)
            and not is_measured(name, direct)
            and not torch.equal(now.detach(), self.start[name])
        ]


def _change(after: list[Tensor], before: list[Tensor] | None) -> float:
    """RMS of the difference; NaN where the module was not called the same way."""
    if before is None or [x.shape for x in after] != [x0.shape for x0 in before]:
        return float("nan")
    return rms([x.double() - x0.double() for x, x0 in zip(after, before, strict=True)])
