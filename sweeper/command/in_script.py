"""What a training script can ask of the trial that it is run for; nothing heavy is imported."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sweeper.errors import BadInput
from sweeper.plan.in_training import TRIAL

if TYPE_CHECKING:
    from sweeper.plan.plan import TransferPlan

FILE, STEPS = "SWEEPER_WATCH", "SWEEPER_WATCH_STEPS"
"""Variables: where to write what was measured, and after how many steps; set by checks alone."""


@dataclass(kw_only=True)
class CurrentTrial:
    """The trial that this process runs.

    `values` are its hyperparameters, as they are used; `sizes` has width, depth, base_width,
    base_depth, steps, batch_size, seq_len and seed; `folder` is its own.
    """

    values: Mapping[str, Any]
    sizes: Mapping[str, int]
    folder: Path
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        try:
            # A script that saves on SIGTERM by itself keeps its handler.
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._stop)
        except ValueError:  # not the main thread
            pass

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    @property
    def plan(self) -> TransferPlan:
        """The plan for this model; BadInput where the command scales by itself."""
        from sweeper.plan.plan import TransferPlan

        return TransferPlan.load(self.folder)

    def report(self, step: int, loss: float, *, heldout: float | None = None) -> None:
        """Tell the loss of a step, counted from 0; in the process of rank 0 alone."""
        if os.environ.get("RANK", "0") != "0":
            return
        row: dict[str, Any] = {"step": int(step), "loss": _as_json(loss)}
        if heldout is not None:
            row["heldout"] = _as_json(heldout)
        # Opened and closed for each line: none waits in a buffer when the process is killed.
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def stopping(self) -> bool:
        """Whether to save and leave, with exit code 75 to be run again: SIGTERM has come."""
        return self._stopping


def current_trial() -> CurrentTrial:
    """The trial that this process runs; BadInput outside of one."""
    if not (path := os.environ.get(TRIAL)):
        raise BadInput(f"this is no trial of sweeper's: {TRIAL} is not set")
    record = json.loads(Path(path).read_text())
    # The whole numbers of trial.json are the sizes and the seed; all else is text or a mapping.
    sizes = {key: value for key, value in record.items() if isinstance(value, int)}
    return CurrentTrial(values=record["hyperparameters"], sizes=sizes, folder=Path(path).parent)


def _as_json(loss: float) -> float | str:
    """The loss as strict JSON has it: as text where it is not finite."""
    return float(loss) if math.isfinite(loss) else str(float(loss))
