"""How a trial is trained, beside its model, data and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, cos, pi
from typing import TYPE_CHECKING, Any, Literal

from sweeper.errors import ConfigError

if TYPE_CHECKING:
    from sweeper.trial import PlainHps

SCHEDULE_HPS = ("warmup", "final_lr")
"""Hyperparameters that any space may hold: factors on settings of the schedule."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Length, batch, schedule, precision and objective of a run.

    `warmup` and `objective_window` are fractions of `steps`; the learning rate ends at `final_lr`
    times its peak. The objective is the mean training loss over the last `objective_window`, or
    the loss on held-out data at the end. A batch is computed in `accumulate` equal parts, whose
    gradients are averaged.
    `clip` bounds the norm of a trial's gradients, all parameters together; None leaves them.
    Precision bfloat16 is an autocast over float32 weights, tf32 the matrix products of float32
    with the shorter mantissa of a GPU's tensor cores.
    """

    steps: int
    batch_size: int
    seq_len: int
    warmup: float = 0.1
    final_lr: float = 0.1
    accumulate: int = 1
    objective: Literal["training", "heldout"] = "training"
    objective_window: float = 0.1
    heldout_batches: int = 8
    precision: Literal["float32", "tf32", "bfloat16", "bfloat16_stream", "float64"] = "float32"
    clip: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for key in ("steps", "batch_size", "seq_len", "accumulate", "heldout_batches"):
            if getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "at least 1")
        if self.batch_size % self.accumulate:
            allowed = f"a divisor of batch_size, which is {self.batch_size}"
            raise ConfigError("accumulate", self.accumulate, allowed)
        if self.objective not in ("training", "heldout"):
            raise ConfigError("objective", self.objective, "training, heldout")
        for key in ("warmup", "final_lr"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(key, getattr(self, key), "a share between 0 and 1")
        if not 0 < self.objective_window <= 1:
            raise ConfigError("objective_window", self.objective_window, "above 0, at most 1")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError("clip", self.clip, "null, or a positive number")

    def with_hps(self, hps: PlainHps) -> TrainSettings:
        """The settings of a trial with hyperparameters `hps`, which may change its schedule."""
        names = [name for name in SCHEDULE_HPS if name in hps]
        # A fraction of the run, or of the peak, cannot exceed 1.
        schedule = {name: min(1.0, getattr(self, name) * hps[name]) for name in names}
        return replace(self, **schedule) if schedule else self

    def window(self) -> int:
        """Steps in the objective's last stretch."""
        return max(1, ceil(self.objective_window * self.steps))

    def schedule(self, step: int) -> float:
        """The factor on the peak learning rate at `step`, from 0: linear warm-up, then cosine."""
        warmup = round(self.warmup * self.steps)
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - 1 - warmup)
        return self.final_lr + (1 - self.final_lr) * 0.5 * (1 + cos(pi * progress))


def numerics_beside(
    runner: Mapping[str, Any], plugins: Iterable[str], tree: Mapping[str, Any]
) -> dict[str, int]:
    """What the key of the engine's trials has where a correction changed them alone.

    Under u-muP the gradient of a norm's gain is over the root of the tokens. Adam sees its size
    where gradients are clipped together; elsewhere no more than by its eps.
    """
    unit = any("umup" in name.lower() for name in plugins)
    clipped = tree["train"].get("clip") is not None and tree["model"].get("norm_gain")
    return {"norm_gains": 2} if runner.get("name") == "engine" and unit and clipped else {}
