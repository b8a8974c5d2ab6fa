"""What all layers exchange: the space that is searched, a trial, and its result."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, get_args

from sweeper.errors import ConfigError

Status = Literal["complete", "diverged", "pruned", "failed"]
Log2Hps = Mapping[str, float]
"""Hyperparameters by name, always as their base-2 logarithm."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One hyperparameter's range; `low`, `high` and `default` are base-2 logarithms."""

    low: float
    high: float
    default: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an empty range, or one too large for the arithmetic of a float32."""
        for key, value in (("low", self.low), ("high", self.high), ("default", self.default)):
            if not math.isfinite(value) or abs(value) > 60:
                raise ConfigError(key, value, "a base-2 logarithm between -60 and 60")
        if self.low > self.high:
            raise ConfigError("low", self.low, f"at most high, which is {self.high:g}")

    def grid(self, step: float) -> list[float]:
        """The points from `low` to `high`, `step` apart in log2."""
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [self.low + i * step for i in range(count)]


Space = Mapping[str, Axis]
"""The hyperparameters that may be searched, by name."""


def defaults(space: Space) -> dict[str, float]:
    """Every hyperparameter at its default (log2)."""
    return {name: axis.default for name, axis in space.items()}


def digest(value: object) -> str:
    """SHA-256 of a JSON value in one canonical spelling."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run, fully resolved.

    `setup` is everything beside the hyperparameters and the seed that determines the result:
    parameterization, model with its base, optimizer, data (by content) and training, as plain
    JSON. `hps` are log2 values. `seed` draws the initial weights and the batches. `phase`
    only describes; it is no part of the key.
    """

    setup: Mapping[str, Any]
    hps: Log2Hps
    seed: int = 0
    phase: str = field(default="", compare=False)

    @cached_property
    def key(self) -> str:
        """Digest of everything that determines the result; two equal trials are one."""
        hps = {name: round(float(value), 9) + 0.0 for name, value in self.hps.items()}
        return digest({"setup": self.setup, "hps": hps, "seed": self.seed})[:32]

    @property
    def width(self) -> int:
        """Width of the trial's model."""
        return int(self.setup["model"]["width"])

    @property
    def depth(self) -> int:
        """Depth (layers) of the trial's model."""
        return int(self.setup["model"]["depth"])

    def values(self) -> dict[str, float]:
        """Hyperparameters as they are used: 2 to the power of `hps`."""
        return {name: 2.0**value for name, value in self.hps.items()}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a trial.

    `objective` is the training loss in nats averaged over the last stretch that was trained, +inf
    when the run diverged and NaN only when it failed for a reason of its own (`error`). `heldout`
    is the loss on held-out text at the end, NaN when a run was pruned before it; `curve` is the
    training loss, averaged over equal stretches of the run; `seconds` is this trial's share of its
    pack's time on `device`.
    """

    trial: Trial
    status: Status
    objective: float
    heldout: float = math.nan
    curve: tuple[float, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    finished_at: float = 0.0
    error: str = ""
    device: str = ""

    @property
    def key(self) -> str:
        """The trial's key."""
        return self.trial.key

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; infinities and NaN are written as strings, which JSON can hold."""
        trial = self.trial
        return {
            "key": self.key,
            **{name: encode(getattr(self, name)) for name in _OUTCOME},
            "trial": {
                "hps": encode(trial.hps),
                "seed": trial.seed,
                "phase": trial.phase,
                "setup": encode(trial.setup),
            },
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Result:
        """Inverse of `to_json`; ValueError when the record is not that of its own key."""
        content = {name: value for name, value in record.items() if name != "key"}
        numbers = ("objective", "heldout", "seconds", "finished_at")
        content |= {name: float(content[name]) for name in numbers}
        content["curve"] = tuple(map(float, content["curve"]))
        result = cls(**(content | {"trial": Trial(**content["trial"])}))
        if result.status not in get_args(Status):
            raise ValueError(f"unknown status {result.status!r}")
        if not all(isinstance(value, float | int) for value in result.trial.hps.values()):
            raise ValueError("a hyperparameter is not a number")
        if result.key != record.get("key"):
            raise ValueError("the record's key does not match its content")
        return result


_OUTCOME = [each.name for each in fields(Result) if each.name != "trial"]


def encode(value: Any) -> Any:
    """`value` with non-finite floats as the strings inf, -inf and nan (strict JSON)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    return value
