"""TensorBoard: a folder of event files a trial, a mirror of the study's record."""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.errors import ConfigError
from sweeper.study.folder import TargetFolder
from sweeper.study.logs.log import (
    Ledgers,
    axis_verdicts,
    log_folder,
    loss_curve,
    plan_line,
    result_line,
)
from sweeper.trial import Choice, Result


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Event files in `tensorboard/PHASE/KEY` of the study's folder, with hyperparameters.

    `tensorboard/logged` says what is there: a folder without its line is written anew.
    """

    _ledgers: Ledgers = field(default_factory=Ledgers, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            need = "it needs the package tensorboard: pip install 'sweeper[tensorboard]'"
            raise ConfigError("_target_", f"{__name__}.TensorBoard", need)

    def log(self, folder: Path, result: Result) -> None:
        """The trial's curve over steps, its outcome at the last step, its hyperparameters."""
        home = log_folder(folder, "tensorboard")
        ledger = self._ledgers.at(home / "logged")
        if (line := result_line(result)) in ledger:
            return
        trial = result.trial
        hps = dict(trial.values) | {"width": trial.width, "depth": trial.depth, "seed": trial.seed}
        scalars = [(step, {"loss": loss}) for step, loss in loss_curve(result)]
        last = {"objective": result.objective, "heldout": result.heldout, "seconds": result.seconds}
        last |= {} if result.accuracy is None else {"accuracy": result.accuracy}
        scalars.append((result.steps, last))
        # TensorBoard joins all event files of a folder into one run: an older outcome must go. By
        # any phase: a trial that two phases share keeps the phase that trained it last.
        for old in home.glob(f"*/{trial.key}"):
            shutil.rmtree(old)
        texts = {"status": result.status, **({"error": result.error} if result.error else {})}
        place = home / (trial.phase or "trial") / trial.key
        _write(place, result.finished_at, hps, scalars, texts)
        # Last: after a kill before it the whole folder is written anew.
        ledger.add(line)

    def plan(self, folder: Path, target: Path) -> None:
        """The plan, and the verdict when there is one, as texts."""
        home = log_folder(folder, "tensorboard")
        ledger = self._ledgers.at(home / "logged")
        if (line := plan_line(target)) in ledger:
            return
        place = home / "plan" / target.name
        shutil.rmtree(place, ignore_errors=True)
        texts = {f"transfer over {axis}": answer for axis, answer in axis_verdicts(target).items()}
        plan = TargetFolder(target).plan
        rows = plan.read_text().splitlines()
        texts["plan"] = "\n".join(f"    {row}" for row in rows)  # as code, to Markdown
        _write(place, plan.stat().st_mtime, {}, [], texts)
        ledger.add(line)


def _write(
    place: Path,
    when: float,
    hps: Mapping[str, Choice],
    scalars: list[tuple[int, dict[str, float]]],
    texts: Mapping[str, str],
) -> None:
    # It brings torch, which a study of a user's command does without.
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    with SummaryWriter(str(place)) as writer:
        if hps:
            # The second of three holds the values; the others declare ranges and tell of an end.
            _, values, _ = hparams(dict(hps), {})  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(values, 0, when)
        for step, at_step in scalars:
            for name, value in at_step.items():
                if not math.isnan(value):
                    writer.add_scalar(name, value, step, when)
        for name, text in texts.items():
            writer.add_text(name, text, 0, when)
