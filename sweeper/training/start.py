"""The tensors that a pack starts from: drawn weights, scales, and what its update reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sweeper.scaling.prescription import AbsorbedParam
from sweeper.scaling.spec import ParamSpec
from sweeper.training.architecture import initial_values
from sweeper.training.draw import normal
from sweeper.training.optimizer import UpdateHps, unsqueeze_like
from sweeper.training.precision import weights_dtype
from sweeper.training.prepare import PreparedSpec
from sweeper.training.program import Stacked
from sweeper.trial import Trial


class Start:
    """Of `trials`, one a slice, whose seeds are among `seeds`."""

    def __init__(
        self,
        prepared: PreparedSpec,
        trials: Sequence[Trial],
        seeds: Sequence[int],
        device: torch.device,
    ) -> None:
        """What the trials' hyperparameters prescribe is worked out; nothing is drawn yet."""
        self.prepared, self.trials, self.seeds, self.device = prepared, trials, seeds, device
        self.dtype = weights_dtype(prepared)
        self._trained_with = [prepared.trained_with(trial.hps) for trial in trials]
        self._own_values = self._values_of_the_model()
        # Trials of one seed see the same batches, so that a batch is sent once for a seed; this
        # is the row that each slice reads.
        self.seed_rows = self._on_device([self.seeds.index(trial.seed) for trial in trials])

    def _on_device(self, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device)

    def _values_of_the_model(self) -> dict[str, Tensor]:
        """Parameters that start as the model's own code sets them, [seeds, ...] by name."""
        kept = [spec.name for spec in self.prepared.specs if spec.init == "kept"]
        if not kept:
            return {}
        unit = self.prepared.scheme.unit_scaled
        by_seed = [initial_values(self.prepared.spec, unit, seed) for seed in self.seeds]
        return {name: torch.stack([values[name] for values in by_seed]) for name in kept}

    def params(self) -> Stacked:
        """Initial weights, by (seed, name) alone: company in a pack changes nothing."""
        return {
            spec.name: self._param(spec, [by_name[spec.name] for by_name in self._trained_with])
            for spec in self.prepared.trained_specs
        }

    def _param(self, spec: ParamSpec, trained_with: Sequence[AbsorbedParam]) -> Tensor:
        if spec.init == "kept":
            return self._own_value(spec.name).requires_grad_()
        moments = [(one.init_mean, one.init_std) for one in trained_with]
        means, stds = self._on_device(moments, torch.float64).unbind(1)
        # Trials of one seed share the draw: each weight is drawn once a seed, not once a trial.
        draws = torch.stack([normal(spec.name, spec.shape, seed) for seed in self.seeds])
        values = draws.to(self.device)[self.seed_rows]
        values.mul_(unsqueeze_like(stds, values)).add_(unsqueeze_like(means, values))
        if (row := self.prepared.architecture.padding.get(spec.name)) is not None:
            values[:, row] = 0
        return values.to(self.dtype).requires_grad_()

    def _own_value(self, name: str) -> Tensor:
        """A parameter [K, ...] as the model's own code sets it, in the pack's precision."""
        values = self._own_values[name].to(self.device)[self.seed_rows]
        return values.to(self.dtype) if values.is_floating_point() else values

    def frozen(self) -> Stacked:
        """Parameters [K, ...] that are not trained."""
        return {
            spec.name: self._own_value(spec.name) for spec in self.prepared.specs if spec.frozen
        }

    def scales(self) -> Stacked:
        """The scheme's scale buffers [K]."""
        values = {trial.key: self.prepared.buffers(trial.hps) for trial in self.trials}
        rows = [values[trial.key] for trial in self.trials]
        return {
            name: self._on_device([row.get(name, 1.0) for row in rows], self.dtype)
            for name in sorted(set().union(*rows))
        }

    def update_hps(self) -> UpdateHps:
        """What parameters are trained with as tensors [K, ...], and the optimizer's settings."""
        optimizer, specs = self.prepared.optimizer, self.prepared.trained_specs

        def stacked(field: str) -> list[Tensor]:
            rows = [[getattr(p[spec.name], field) for p in self._trained_with] for spec in specs]
            return [
                self._on_device(row, self.dtype).view(-1, *[1] * len(spec.shape))
                for row, spec in zip(rows, specs, strict=True)
            ]

        settings = [optimizer.settings(trial.hps) for trial in self.trials]
        return UpdateHps(
            kinds=[optimizer.kind(spec) for spec in specs],
            lr=stacked("lr"),
            eps=stacked("eps"),
            weight_decay=stacked("weight_decay"),
            parts=[self.prepared.architecture.parts.get(spec.name, 1) for spec in specs],
            settings={
                name: self._on_device([row[name] for row in settings], torch.float64)
                for name in settings[0]
            },
        )
